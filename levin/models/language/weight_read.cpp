// Weights of a file to their places, in chunks, on several threads. What a chunk needs besides its place is a buffer or
// two of its size: neither a file nor a tensor is ever whole in host memory.
#include <algorithm>
#include <memory>
#include <mutex>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/core/parallel.h"
#include "levin/models/language/weight_plan.h"

namespace levin::models::detail {
namespace {

/// Rows of a tensor of the file, and the view of the parameter that has their numbers in their order.
struct WeightChunk {
  const WeightEntry* entry;
  Tensor place;
  int64_t first = 0;
  int64_t rows = 0;
  /// The columns of a matrix that are wanted; none: all.
  Share columns = {};

  /// As the file has them.
  int64_t bytes() const {
    return rows > 0 ? rows * static_cast<int64_t>(entry->bytes) / entry->shape[0] : static_cast<int64_t>(entry->bytes);
  }
  bool is_direct() const { return columns.count == 0 && place.is_contiguous() && place.scalar_type() == entry->type; }
  /// What is wanted of the rows, in the shape of its place.
  Tensor wanted(const Tensor& all) const {
    return columns.count == 0 ? all.view(place.sizes()) : all.narrow(1, columns.first, columns.count);
  }
  /// The shape of the rows in the file.
  std::vector<int64_t> shape() const {
    auto sizes = entry->shape;
    sizes[0] = rows;
    return sizes;
  }
};

/// A part of a parameter in the order of the file. The first dimension may be cut anywhere.
Tensor in_file_order(const Tensor& part, WeightLayout layout, int64_t heads) {
  if (layout == WeightLayout::kTransposed && part.dim() == 2) return part.t();
  if (layout != WeightLayout::kByHead) return part;
  auto split = part.sizes().vec();
  split[0] /= 3 * heads;
  split.insert(split.begin(), {3, heads});
  return part.view(split).transpose(0, 1);  // [H, 3, D, ...]
}

/// `rows` of the tensor of the file, and `columns` where not all are wanted.
void add_chunks(std::vector<WeightChunk>& chunks, const WeightEntry& entry, const Tensor& place, Share rows,
                Share columns = {}) {
  if (place.numel() == 0) return;
  if (!entry.by_rows || place.dim() == 0) {
    chunks.push_back({&entry, place, rows.first, 0, columns});
    return;
  }
  const auto units = place.size(0), each = rows.count / units;
  const auto row_bytes = static_cast<int64_t>(entry.bytes) / entry.shape[0];
  const auto at_once = std::max<int64_t>(1, chunk_of_read() / std::max<int64_t>(1, each * row_bytes));
  for (int64_t begin = 0; begin < units; begin += at_once) {
    const auto count = std::min(at_once, units - begin);
    chunks.push_back({&entry, place.narrow(0, begin, count), rows.first + begin * each, count * each, columns});
  }
}

/// The chunks of a parameter of which ranges are here. Columns of a file are cut out of whole rows.
void add_slices(std::vector<WeightChunk>& chunks, const WeightFile& file, const PlannedWeight& weight, int64_t heads) {
  const auto dim = weight.slice.dim;
  const auto& ranges = weight.slice.ranges;
  const auto& whole = weight.slice.whole;
  const auto target = weight.target.detach();
  if (weight.layout == WeightLayout::kStacked) {
    // Whole experts, of which others are not read, or parts of all: of rows (gate, up) or of columns (down).
    const auto first = dim == 0 ? ranges[0].first : 0;
    for (int64_t i = 0; i < target.size(0); ++i) {
      const auto& entry = file.at(weight.sources[static_cast<size_t>(first + i)]);
      const auto rows = dim == 1 ? ranges[0] : Share{0, entry.shape[0]};
      add_chunks(chunks, entry, target[i], rows, dim == 2 ? ranges[0] : Share{});
    }
    return;
  }
  if (weight.layout == WeightLayout::kByHead) {
    // Heads are neighbours in the file: those of a rank are one piece.
    const Share rows{3 * ranges[0].first, target.size(0)};
    return add_chunks(chunks, file.at(weight.sources[0]), in_file_order(target, weight.layout, heads), rows);
  }
  const bool turned = weight.layout == WeightLayout::kTransposed && target.dim() == 2;
  int64_t row = 0;
  for (size_t i = 0; i < weight.sources.size(); ++i) {
    const auto& entry = file.at(weight.sources[i]);
    const auto rows = weight.sources.size() == 1 ? whole[0] : weight.rows[i];
    int64_t at = 0;
    for (const auto& range : ranges) {
      const auto piece = target.narrow(dim, at, range.count);
      at += range.count;
      if (dim == 1) {
        const auto part = piece.narrow(0, row, rows);
        turned ? add_chunks(chunks, entry, part.t(), range) : add_chunks(chunks, entry, part, {0, rows}, range);
        continue;
      }
      const auto begin = std::max(range.first, row), end = std::min(range.first + range.count, row + rows);
      if (begin >= end) continue;
      const auto part = piece.narrow(0, begin - range.first, end - begin);
      turned ? add_chunks(chunks, entry, part.t(), {0, whole[1]}, {begin, end - begin})
             : add_chunks(chunks, entry, part, {begin - row, end - begin});
    }
    row += rows;
  }
}

std::vector<WeightChunk> chunks_of(const WeightFile& file, const PlannedWeight& weight, int64_t heads) {
  std::vector<WeightChunk> chunks;
  if (!weight.slice.ranges.empty()) {
    add_slices(chunks, file, weight, heads);
    return chunks;
  }
  const auto target = weight.target.detach();
  int64_t row = 0;
  for (size_t i = 0; i < weight.sources.size(); ++i) {
    const auto& entry = file.at(weight.sources[i]);
    if (weight.layout == WeightLayout::kStacked) {
      add_chunks(chunks, entry, target[static_cast<int64_t>(i)], {0, entry.shape[0]});
      continue;
    }
    const bool whole = weight.sources.size() == 1;
    const auto part = whole ? target : target.narrow(0, row, weight.rows[i]);
    row += whole ? 0 : weight.rows[i];
    add_chunks(chunks, entry, in_file_order(part, weight.layout, heads), {0, entry.shape.empty() ? 1 : entry.shape[0]});
  }
  return chunks;
}

/// What a chunk wants of a tensor that is read as a whole, in the shape of its place.
Tensor all_of(const WeightFile& file, const WeightChunk& chunk) {
  auto all = file.read(chunk.entry->name);
  if (all.numel() == chunk.place.numel()) return all.reshape(chunk.place.sizes());
  if (chunk.columns.count > 0) return all.narrow(1, chunk.columns.first, chunk.columns.count);
  const auto rows = chunk.place.numel() / (all.numel() / all.size(0));
  return all.narrow(0, chunk.first, rows).reshape(chunk.place.sizes());
}

/// Straight into memory of the host, else over a buffer, as plain copies of torch.
void read_chunk(const WeightFile& file, const WeightChunk& chunk) {
  auto place = chunk.place;
  if (chunk.rows == 0) {  // not to be cut
    place.copy_(all_of(file, chunk));
    return;
  }
  const bool direct = place.is_cpu() && chunk.is_direct();
  auto rows =
      direct ? place.view(chunk.shape()) : at::empty(chunk.shape(), at::TensorOptions().dtype(chunk.entry->type));
  file.read_rows(chunk.entry->name, chunk.first, rows);
  if (!direct) place.copy_(chunk.wanted(rows));
}

/// The way of one thread to a device: two pinned buffers, one of which is filled while the other is copied, and a
/// stream. Casts and transposes are the device's work.
class DeviceLane {
 public:
  /// `host` has twice as many bytes as the largest chunk; `device` as many, or none where nothing is converted.
  DeviceLane(c10::Stream stream, const Tensor& host, Tensor device) : stream_(stream), device_(std::move(device)) {
    const auto half = host.numel() / 2;
    for (int64_t i = 0; i < 2; ++i) buffers_[i].host = host.narrow(0, i * half, half);
  }

  void read(const WeightFile& file, const WeightChunk& chunk) {
    const c10::StreamGuard on_lane(stream_);
    auto place = chunk.place;
    if (chunk.rows == 0) {
      place.copy_(all_of(file, chunk).to(place.scalar_type()));
      return;
    }
    auto& buffer = buffers_[turn_];
    turn_ = 1 - turn_;
    if (buffer.copied) buffer.copied->synchronize();
    auto rows = buffer.host.narrow(0, 0, chunk.bytes()).view(chunk.entry->type).view(chunk.shape());
    file.read_rows(chunk.entry->name, chunk.first, rows);
    if (chunk.is_direct()) {
      place.copy_(rows.view(place.sizes()), /*non_blocking=*/true);
    } else {
      auto arrived = device_.narrow(0, 0, chunk.bytes()).view(chunk.entry->type).view(chunk.shape());
      arrived.copy_(rows, /*non_blocking=*/true);
      place.copy_(chunk.wanted(arrived));
    }
    if (!buffer.copied) buffer.copied = std::make_unique<c10::Event>(stream_.device_type());
    buffer.copied->record(stream_);
  }
  void finish() const { stream_.synchronize(); }

 private:
  struct Buffer {
    Tensor host;
    std::unique_ptr<c10::Event> copied = {};
  };
  c10::Stream stream_;
  Tensor device_;
  Buffer buffers_[2];
  int turn_ = 0;
};

/// Lanes of a device, one for each thread that reads.
class DeviceLanes {
 public:
  DeviceLanes(c10::Device device, const std::vector<WeightChunk>& chunks) {
    int64_t largest = 64, converted = 0;
    for (const auto& chunk : chunks) {
      if (chunk.rows == 0) continue;
      // Views of other types begin at multiples of their size.
      const auto bytes = (chunk.bytes() + 63) / 64 * 64;
      largest = std::max(largest, bytes);
      if (!chunk.is_direct()) converted = std::max(converted, bytes);
    }
    const auto count = std::clamp<int64_t>(at::get_num_threads(), 1, static_cast<int64_t>(chunks.size()));
    // Of torch's allocator, which keeps it for the next file.
    host_ = at::empty({count * 2 * largest}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    const auto scratch = at::empty({count * converted}, at::TensorOptions().dtype(at::kByte).device(device));
    const c10::impl::VirtualGuardImpl guard(device.type());
    // What freed the memory of the parameters may still be using it.
    guard.getStream(device).synchronize();
    lanes_.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      lanes_.emplace_back(guard.getStreamFromGlobalPool(device), host_.narrow(0, i * 2 * largest, 2 * largest),
                          scratch.narrow(0, i * converted, converted));
    for (auto& lane : lanes_) free_.push_back(&lane);
  }
  /// Buffers outlive what is copied from them, also where reading fails.
  ~DeviceLanes() {
    try {
      finish();
    } catch (const std::exception&) {  // it was thrown where it happened, or the device is lost
    }
  }
  DeviceLanes(const DeviceLanes&) = delete;
  DeviceLanes& operator=(const DeviceLanes&) = delete;

  /// Waits until all is copied.
  void finish() const {
    for (const auto& lane : lanes_) lane.finish();
  }

  DeviceLane* take() {
    const std::lock_guard lock(mutex_);
    auto* lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void give_back(DeviceLane* lane) {
    const std::lock_guard lock(mutex_);
    free_.push_back(lane);
  }

 private:
  Tensor host_;
  std::vector<DeviceLane> lanes_;
  std::mutex mutex_;
  std::vector<DeviceLane*> free_;
};

void read_chunks(const WeightFile& file, const std::vector<WeightChunk>& chunks, c10::Device device,
                 const std::function<void(int64_t)>& on_read) {
  const auto count = static_cast<int64_t>(chunks.size());
  std::mutex telling;
  const auto each = [&](int64_t begin, int64_t end, auto&& read) {
    const c10::AutoGradMode no_grad(false);
    for (auto i = begin; i < end; ++i) {
      const auto& chunk = chunks[static_cast<size_t>(i)];
      read(chunk);
      if (!on_read) continue;
      const std::lock_guard lock(telling);
      on_read(chunk.bytes());
    }
  };
  if (!device.is_cuda()) {
    parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      each(begin, end, [&](const WeightChunk& chunk) { read_chunk(file, chunk); });
    });
    return;
  }
  DeviceLanes lanes(device, chunks);
  parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const auto give_back = [&](DeviceLane* lane) { lanes.give_back(lane); };
    const std::unique_ptr<DeviceLane, decltype(give_back)> lane(lanes.take(), give_back);
    each(begin, end, [&](const WeightChunk& chunk) { lane->read(file, chunk); });
  });
  lanes.finish();
}

}  // namespace

int64_t& chunk_of_read() {
  static int64_t bytes = 4 << 20;
  return bytes;
}

void read_weights(const WeightFile& file, const std::vector<PlannedWeight>& plan, int64_t heads,
                  const std::function<void(int64_t)>& on_read) {
  std::vector<std::pair<c10::Device, std::vector<WeightChunk>>> by_device;
  for (const auto& weight : plan) {
    const auto device = weight.target.device();
    auto found =
        std::find_if(by_device.begin(), by_device.end(), [&](const auto& item) { return item.first == device; });
    if (found == by_device.end()) found = by_device.insert(found, {device, {}});
    for (auto& chunk : chunks_of(file, weight, heads)) found->second.push_back(std::move(chunk));
  }
  for (const auto& [device, chunks] : by_device)
    if (!chunks.empty()) read_chunks(file, chunks, device, on_read);
}

}  // namespace levin::models::detail
