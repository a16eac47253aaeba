#include "levin/data/decode_gpu/gpu_images_work.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/tensor.h>

#include "levin/kernels/images/image_resample.h"

namespace levin::detail {

GpuImagesWork::GpuImagesWork(BatchId id, std::vector<int64_t> indices, std::shared_ptr<BadSamples> bad,
                             std::shared_ptr<BatchMemory> memory, std::shared_ptr<GpuJpegDecoder> decoder, Make make,
                             double cpu_share)
    : BatchOfWork<Batch>(id, static_cast<int64_t>(indices.size()), std::move(bad)),
      indices_(std::move(indices)),
      made_(indices_.size()),
      memory_(std::move(memory)),
      decoder_(std::move(decoder)),
      make_(std::move(make)),
      cpu_share_(cpu_share) {}

std::string GpuImagesWork::sample_name(int64_t row) const {
  return concat("sample ", indices_[static_cast<size_t>(row)]);
}

bool GpuImagesWork::is_for_cpu(int64_t row) const {
  const auto before = [&](int64_t rows) { return static_cast<int64_t>(static_cast<double>(rows) * cpu_share_); };
  return before(row + 1) > before(row);
}

void GpuImagesWork::make_sample(int64_t row) {
  const int64_t index = indices_[static_cast<size_t>(row)];
  Random random(id_.seed, static_cast<uint64_t>(id_.epoch), static_cast<uint64_t>(index));
  const SampleRandomScope scope(random);
  made_[static_cast<size_t>(row)] = make_(index, random, on_cpu_ || is_for_cpu(row) ? nullptr : decoder_.get());
}

std::vector<int64_t> GpuImagesWork::good_rows() const {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < samples_; ++row)
    if (!bad_[static_cast<size_t>(row)]) rows.push_back(row);
  return rows;
}

bool GpuImagesWork::goes_together(const std::vector<int64_t>& rows) const {
  const auto* first = &made_[static_cast<size_t>(
      *std::find_if(rows.begin(), rows.end(), [&](int64_t row) { return is_encoded(row); }))];
  const auto& how = first->how;
  return std::all_of(rows.begin(), rows.end(), [&](int64_t row) {
    const auto& one = made_[static_cast<size_t>(row)];
    if (is_encoded(row))
      return one.channels == first->channels && one.how.height == how.height && one.how.width == how.width;
    return one.pixels.scalar_type() == how.dtype &&
           one.pixels.sizes() == at::IntArrayRef({first->channels, how.height, how.width});
  });
}

void GpuImagesWork::prepare() {
  const auto good = good_rows();
  std::vector<int64_t> encoded;
  for (const int64_t row : good)
    if (is_encoded(row)) encoded.push_back(row);
  if (encoded.empty()) return;
  bool done = false;
  if (goes_together(good)) {
    const auto on_stream = [&] {
      done = decode(encoded);
      if (done && encoded.size() < good.size()) add_pixels(good);
    };
    std::optional<c10::Event> unused;  // what follows is on the same stream
    if (delivery && delivery->copy)
      delivery->copy->run(on_stream, unused);
    else
      on_stream();
  }
  if (done) return;
  // The CPU says what is wrong, and of which sample.
  on_cpu_ = true;
  images_ = Tensor();
  for (const int64_t row : encoded) make(row);
}

bool GpuImagesWork::decode(const std::vector<int64_t>& rows) {
  std::vector<JpegJob> jobs;
  std::vector<kernels::ResamplePlacement> placements;
  for (const int64_t row : rows) {
    const auto& one = made_[static_cast<size_t>(row)];
    jobs.push_back({std::as_bytes(std::span(one.file)), one.head, one.region});
    placements.push_back(one.placement);
  }
  const auto& first = made_[static_cast<size_t>(rows[0])];
  // A border or a bicubic filter may be of one image and not of another, where it changes nothing.
  auto how = first.how;
  for (const int64_t row : rows) {
    const auto& other = made_[static_cast<size_t>(row)].how;
    how.bicubic = how.bicubic || other.bicubic;
    if (other.fill != std::vector<double>{0}) how.fill = other.fill;
  }
  std::vector<Tensor> parts;
  const bool done = decoder_->decode(jobs, first.channels, [&](size_t begin, std::span<const Tensor> pixels) {
    parts.push_back(kernels::resample_images(pixels, std::span(placements).subspan(begin, pixels.size()), how));
  });
  if (done) images_ = parts.size() == 1 ? parts[0] : at::cat(parts);
  return done;
}

void GpuImagesWork::add_pixels(const std::vector<int64_t>& rows) {
  std::vector<NamedRows> samples;
  std::vector<int64_t> from, here, there;  // rows, and places of those that the CPU and the device have made
  const EncodedImage* encoded = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& one = made_[static_cast<size_t>(rows[i])];
    if (is_encoded(rows[i])) {
      encoded = &one;
      there.push_back(static_cast<int64_t>(i));
      continue;
    }
    samples.push_back({{"image", one.pixels}});
    from.push_back(rows[i]);
    here.push_back(static_cast<int64_t>(i));
  }
  const Tensor pixels =
      stack_samples(*memory_, samples, from, [this](int64_t row) { return sample_name(row); })[0].second;
  auto sizes = images_.sizes().vec();
  sizes[0] = static_cast<int64_t>(rows.size());
  const auto format = encoded->how.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Tensor all = at::empty(sizes, images_.options(), format);
  const auto put = [&](const std::vector<int64_t>& places, const Tensor& images) {
    Tensor at = at::tensor(places, at::kLong);
    if (all.is_cuda()) at = at.pin_memory();
    all.index_copy_(0, at.to(all.device(), /*non_blocking=*/true), images);
  };
  put(there, images_);
  put(here, pixels.to(all.device(), /*non_blocking=*/true));
  images_ = all;
}

Batch GpuImagesWork::collate() {
  const auto rows = good_rows();
  std::vector<NamedRows> samples;
  for (const int64_t row : rows) {
    auto& one = made_[static_cast<size_t>(row)];
    auto& sample = samples.emplace_back();
    if (!images_.defined()) sample.emplace_back("image", one.pixels);
    if (one.label.defined()) sample.emplace_back("label", one.label);
  }
  Batch batch;
  if (images_.defined()) batch.set("image", std::move(images_));
  for (auto& [name, tensor] : stack_samples(*memory_, samples, rows, [this](int64_t row) { return sample_name(row); }))
    batch.set(name, std::move(tensor));
  return batch;
}

}  // namespace levin::detail
