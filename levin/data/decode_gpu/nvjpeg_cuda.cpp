#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/data/decode_gpu/jpeg_decoder.h"
#include "levin/data/decode_gpu/nvjpeg_api.h"
#include "levin/io/images/image.h"
#include "levin/kernels/images/jpeg_colors.h"

namespace levin::detail {
namespace {

constexpr int64_t kPlaneAlign = 256;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of decoded planes and pixels at a time
// Calls under way at a time. A batch of 256 alone stays with the hardware, and the multiprocessors have nothing to do.
constexpr size_t kHardwareSlots = 4, kCudaSlots = 3;
constexpr size_t kFilesAtOnce = 64;  // in a call; CUDA decodes more than 50 without the CPU's help

int64_t aligned(int64_t bytes) {
  return (bytes + kPlaneAlign - 1) / kPlaneAlign * kPlaneAlign;
}

/// Where the planes of a file and its RGB part lie in the memory of a slot.
struct JpegPlacing {
  int64_t planes[3] = {};
  int64_t luma_pitch = 0, chroma_pitch = 0, chroma_height = 0, chroma_width = 0;
  int64_t colors = -1;  // only of a file that has them
  int64_t end = 0;

  JpegPlacing(const JpegJob& job, int channels, int64_t begin) {
    const auto& head = job.head;
    luma_pitch = (head.width + 31) / 32 * 32;
    planes[0] = begin;
    end = begin + aligned(luma_pitch * head.height);
    if (head.components == 1) return;
    chroma_width = (head.width + head.across[0] - 1) / head.across[0];
    chroma_height = (head.height + head.down[0] - 1) / head.down[0];
    chroma_pitch = (chroma_width + 31) / 32 * 32;
    for (const int plane : {1, 2}) {
      planes[plane] = end;
      end += aligned(chroma_pitch * chroma_height);
    }
    colors = end;
    end += aligned(job.region.height * job.region.width * channels);
  }
};

/// One way of nvJPEG to decode. All give the same planes.
struct NvJpegBackend {
  std::shared_ptr<NvJpegApi::Library> library;
  bool hardware = false;
};

class NvJpegDecoder final : public GpuJpegDecoder {
 public:
  /// The first of the backends is asked whether it takes a file, and has the first batch. What a backend has no time
  /// for goes to the next one.
  NvJpegDecoder(const NvJpegApi& api, std::vector<NvJpegBackend> backends, c10::Device device, std::string name)
      : api_(api), backends_(std::move(backends)), device_(device), name_(std::move(name)) {}

  ~NvJpegDecoder() override {
    const c10::cuda::CUDAGuard guard(device_);
    for (auto& slot : slots_) {
      try {
        slot->stream.synchronize();
      } catch (const c10::Error&) {  // the device has failed, and the program has its error already
      }
      if (slot->state) api_.state_destroy(slot->state);
    }
    for (const auto& parser : parsers_) {
      api_.params_destroy(parser.params);
      api_.stream_destroy(parser.stream);
    }
  }

  std::string name() const override { return name_; }

  bool takes(std::span<const std::byte> file, const JpegHead& head) const override {
    if (!is_common_jpeg(head)) return false;
    const c10::cuda::CUDAGuard guard(device_);
    Parser parser;
    {
      const std::lock_guard lock(mutex_);
      if (!parsers_.empty()) {
        parser = parsers_.back();
        parsers_.pop_back();
      }
    }
    if (!parser.stream && !open_parser(parser)) return false;
    int refused = 1;
    const bool parsed =
        api_.stream_parse_header(first().library.get(), reinterpret_cast<const unsigned char*>(file.data()),
                                 file.size(), parser.stream) == 0;
    // Without hardware the question may have no answer; a file that is refused after all is decoded by the CPU.
    if (parsed && api_.batched_supported(first().library.get(), parser.stream, parser.params, &refused) != 0)
      refused = first().hardware ? 1 : 0;
    const std::lock_guard lock(mutex_);
    parsers_.push_back(parser);
    return parsed && refused == 0;
  }

  bool decode(std::span<const JpegJob> jobs, int channels, const Use& use) override {
    const c10::cuda::CUDAGuard guard(device_);
    for (size_t first = 0; first < jobs.size();) {
      std::vector<JpegPlacing> places;
      int64_t bytes = 0;
      for (size_t i = first; i < jobs.size(); ++i) {
        JpegPlacing place(jobs[i], channels, bytes);
        if (i > first && (place.end > kMostBytes || places.size() == kFilesAtOnce)) break;
        bytes = place.end;
        places.push_back(place);
      }
      if (!decode_some(jobs.subspan(first, places.size()), places, bytes, channels, first, use)) return false;
      first += places.size();
    }
    return true;
  }

 private:
  struct Parser {
    NvJpegApi::Stream* stream = nullptr;
    NvJpegApi::Params* params = nullptr;
  };
  /// What one call of nvJPEG works with, on a stream of its own.
  struct Slot {
    Slot(const NvJpegBackend& backend, c10::DeviceIndex index)
        : library(backend.library.get()),
          hardware(backend.hardware),
          stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index)) {}
    NvJpegApi::Library* library;
    bool hardware;
    NvJpegApi::State* state = nullptr;
    c10::cuda::CUDAStream stream;
    at::cuda::CUDAEvent done, used;
    Tensor memory;        // on the device
    Tensor files;         // pinned; nvJPEG reads it until `done`
    int batch = 0;        // what the state is initialized for
    bool failed = false;  // the state is not used again
    bool busy = false;
  };
  const NvJpegBackend& first() const { return backends_.front(); }

  bool open_parser(Parser& parser) const {
    if (api_.stream_create(first().library.get(), &parser.stream) != 0) return false;
    if (api_.params_create(first().library.get(), &parser.params) == 0 &&
        api_.params_set_output(parser.params, NvJpegApi::kYuv) == 0)
      return true;
    api_.stream_destroy(parser.stream);
    return false;
  }

  /// Of the first backend that is not under way with as many batches as it may have slots; where all are, a slot that
  /// nobody holds, and whose batch will be done before long. Null when there is none. Under the mutex. States are made
  /// when they are needed: they cost memory and time.
  Slot* free_slot(bool of_last_backend) {
    Slot* found = nullptr;
    for (const auto& backend : std::span(backends_).last(of_last_backend ? 1 : backends_.size())) {
      size_t made = 0;
      for (auto& slot : slots_) {
        if (slot->library != backend.library.get()) continue;
        ++made;
        if (slot->busy) continue;
        if (slot->stream.query()) return slot.get();
        if (!found) found = slot.get();
      }
      if (made == (backend.hardware ? kHardwareSlots : kCudaSlots)) continue;
      auto slot = std::make_unique<Slot>(backend, device_.index());
      renew(*slot);
      return slots_.emplace_back(std::move(slot)).get();
    }
    return found;
  }

  /// Gives the slot a state that knows of no batch before.
  void renew(Slot& slot) const {
    slot.failed = true;
    if (slot.state) api_.state_destroy(std::exchange(slot.state, nullptr));
    LEVIN_CHECK(api_.state_create(slot.library, &slot.state) == 0, "[data] nvJPEG has no memory for another decoder");
    slot.batch = 0;
    slot.failed = false;
  }

  /// A slot that nobody uses, as long as this lives. Who waits for one holds none, and who holds one waits for the
  /// device alone: so each wait ends.
  class TakenSlot {
   public:
    TakenSlot(NvJpegDecoder& decoder, bool of_last_backend) : decoder_(decoder) {
      std::unique_lock lock(decoder.mutex_);
      while (!(slot_ = decoder.free_slot(of_last_backend))) decoder.freed_.wait(lock);
      slot_->busy = true;
    }
    ~TakenSlot() {
      {
        const std::lock_guard lock(decoder_.mutex_);
        slot_->busy = false;
      }
      decoder_.freed_.notify_all();  // not every slot suits whoever is woken
    }
    TakenSlot(const TakenSlot&) = delete;
    TakenSlot& operator=(const TakenSlot&) = delete;
    Slot* operator->() const { return slot_; }
    Slot& operator*() const { return *slot_; }

   private:
    NvJpegDecoder& decoder_;
    Slot* slot_ = nullptr;
  };

  /// A state may refuse a batch for what it did before (another number of files). So files are given to a new one, of
  /// the backend that takes the most, before they are called broken.
  bool decode_some(std::span<const JpegJob> jobs, std::span<const JpegPlacing> places, int64_t bytes, int channels,
                   size_t first, const Use& use) {
    return decode_once(false, jobs, places, bytes, channels, first, use) ||
           decode_once(true, jobs, places, bytes, channels, first, use);
  }

  bool decode_once(bool again, std::span<const JpegJob> jobs, std::span<const JpegPlacing> places, int64_t bytes,
                   int channels, size_t first, const Use& use) {
    const TakenSlot slot(*this, /*of_last_backend=*/again);
    const auto caller = c10::cuda::getCurrentCUDAStream(device_.index());
    std::vector<Tensor> pixels;
    {
      const c10::cuda::CUDAStreamGuard on_slot(slot->stream);
      if (!slot->memory.defined() || slot->memory.numel() < bytes) {
        slot->memory = Tensor();
        slot->memory = at::empty({bytes + bytes / 4}, at::TensorOptions().dtype(at::kByte).device(device_));
      }
      // Until the files of the batch before are read, its pixels used, and this memory free. The hardware writes at
      // once, whatever its stream still waits for; so the host has to wait.
      slot->stream.synchronize();
      if (again || slot->failed) renew(*slot);
      if (!run_nvjpeg(*slot, jobs, places)) {
        slot->failed = true;
        (void)cudaGetLastError();  // others take over, and torch shall not find it
        return false;
      }
      make_colors(*slot, jobs, places, channels);
      slot->done.record(slot->stream);
    }
    for (size_t i = 0; i < jobs.size(); ++i) pixels.push_back(pixels_of(slot->memory, jobs[i], places[i], channels));
    slot->done.block(caller);
    use(first, pixels);
    slot->used.record(caller);
    slot->used.block(slot->stream);
    decoded_.fetch_add(static_cast<int64_t>(jobs.size()), std::memory_order_relaxed);
    return true;
  }

  bool run_nvjpeg(Slot& slot, std::span<const JpegJob> jobs, std::span<const JpegPlacing> places) {
    int64_t file_bytes = 0;
    for (const auto& job : jobs) file_bytes += aligned(static_cast<int64_t>(job.file.size()) + 1);
    if (!slot.files.defined() || slot.files.numel() < file_bytes)
      slot.files = at::empty({file_bytes + file_bytes / 4}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    auto* file = slot.files.mutable_data_ptr<uint8_t>();
    auto* memory = slot.memory.mutable_data_ptr<uint8_t>();
    std::vector<const unsigned char*> data;
    std::vector<size_t> lengths;
    std::vector<NvJpegImage> images(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      std::memcpy(file, jobs[i].file.data(), jobs[i].file.size());
      data.push_back(file);
      lengths.push_back(jobs[i].file.size());
      file += aligned(static_cast<int64_t>(jobs[i].file.size()) + 1);
      for (int plane = 0; plane < (jobs[i].head.components == 1 ? 1 : 3); ++plane) {
        images[i].channel[plane] = memory + places[i].planes[plane];
        images[i].pitch[plane] = static_cast<size_t>(plane == 0 ? places[i].luma_pitch : places[i].chroma_pitch);
      }
    }
    const int batch = static_cast<int>(jobs.size()), before = std::exchange(slot.batch, batch);
    const char* step = "initialize";
    int status = before == batch ? 0 : api_.batched_initialize(slot.library, slot.state, batch, 1, NvJpegApi::kYuv);
    if (status == 0) {
      step = "decode";
      status = api_.batched_decode(slot.library, slot.state, data.data(), lengths.data(), images.data(),
                                   slot.stream.stream());
    }
    if (status != 0 && !told_.exchange(true))
      log_warning(concat("[data] nvJPEG (", slot.hardware ? "hardware" : "CUDA", ") refuses ", batch, " files after ",
                         before, " (", step, ", status ", status, "); others decode them, with the same pixels"));
    return status == 0;
  }

  void make_colors(Slot& slot, std::span<const JpegJob> jobs, std::span<const JpegPlacing> places, int channels) {
    auto* memory = slot.memory.mutable_data_ptr<uint8_t>();
    std::vector<kernels::JpegPlanesEntry> entries;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const auto& place = places[i];
      const auto& job = jobs[i];
      if (place.colors < 0) continue;
      const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
      entries.push_back({.luma = memory + place.planes[0],
                         .blue = memory + place.planes[1],
                         .red = memory + place.planes[2],
                         .luma_pitch = number(place.luma_pitch),
                         .chroma_pitch = number(place.chroma_pitch),
                         .chroma_height = number(place.chroma_height),
                         .chroma_width = number(place.chroma_width),
                         .half_height = job.head.down[0] == 2,
                         .half_width = job.head.across[0] == 2,
                         .top = number(job.region.top),
                         .left = number(job.region.left),
                         .height = number(job.region.height),
                         .width = number(job.region.width),
                         .gray = channels == 1,
                         .out = memory + place.colors});
    }
    kernels::jpeg_colors(entries, device_);
  }

  static Tensor pixels_of(const Tensor& memory, const JpegJob& job, const JpegPlacing& place, int channels) {
    const auto& region = job.region;
    if (place.colors >= 0)
      return memory.as_strided({channels, region.height, region.width}, {1, region.width * channels, channels},
                               place.colors);
    // Of a file without colors luma stands in all channels.
    return memory.as_strided({channels, region.height, region.width}, {0, place.luma_pitch, 1},
                             place.planes[0] + region.top * place.luma_pitch + region.left);
  }

  const NvJpegApi& api_;
  std::vector<NvJpegBackend> backends_;
  c10::Device device_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::vector<Parser> parsers_;
  std::condition_variable freed_;
  std::atomic<bool> told_ = false;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// A picture through both decoders. A library or a driver that does not do what is expected of it must not be found out
// by a model that does not learn.
bool decodes_as_the_cpu(NvJpegDecoder& decoder) {
  constexpr int64_t kHeight = 101, kWidth = 149;
  const Tensor y = at::arange(kHeight, at::kFloat).view({1, -1, 1}),
               x = at::arange(kWidth, at::kFloat).view({1, 1, -1});
  const Tensor phase = at::arange(3, at::kFloat).view({3, 1, 1});
  const Tensor picture = (at::sin(y * 0.11 + phase) * 60 + at::cos(x * 0.07 + phase * 2) * 60 + 128).to(at::kByte);
  const std::string file = encode_image(picture, {.format = "jpeg", .quality = 90});
  const auto bytes = std::as_bytes(std::span(file));
  const auto head = jpeg_head(bytes);
  if (!head || !decoder.takes(bytes, *head)) return false;
  const Tensor expected = decode_image(bytes).to(at::kInt);
  const std::vector<JpegJob> jobs(4, {bytes, *head, {.height = kHeight, .width = kWidth}});
  bool equal = true;
  const bool done = decoder.decode(jobs, 3, [&](size_t, std::span<const Tensor> pixels) {
    for (const auto& one : pixels) {
      const Tensor difference = (one.cpu().to(at::kInt) - expected).abs();
      equal = equal && difference.max().item<int>() <= 2;
    }
  });
  return done && equal;
}

}  // namespace

std::unique_ptr<GpuJpegDecoder> open_gpu_jpeg_decoder(c10::Device device, std::string& why) {
  const NvJpegApi* api = NvJpegApi::find(why);
  if (!api) return nullptr;
  const c10::cuda::CUDAGuard guard(device);
  std::vector<NvJpegBackend> good;
  std::string names;
  for (const bool hardware : {true, false}) {
    const std::string name = hardware ? "hardware" : "CUDA";
    NvJpegApi::Library* made = nullptr;
    const int status = api->create(hardware ? NvJpegApi::kHardware : NvJpegApi::kGpuHybrid, nullptr, nullptr, 0, &made);
    (void)cudaGetLastError();
    if (status != 0) {
      why = concat("nvJPEG (", name, ") cannot be used on ", device, " (its status is ", status, ")");
      continue;
    }
    const NvJpegBackend backend{{made,
                                 [api, device](NvJpegApi::Library* library) {
                                   const c10::cuda::CUDAGuard there(device);
                                   api->destroy(library);
                                 }},
                                hardware};
    NvJpegDecoder alone(*api, {backend}, device, name);
    if (decodes_as_the_cpu(alone)) {
      good.push_back(backend);
      names += names.empty() ? name : " and " + name;
    } else {
      why = concat("nvJPEG (", name, ") on ", device, " does not decode a test image as the CPU does");
    }
  }
  if (good.empty()) return nullptr;
  return std::make_unique<NvJpegDecoder>(*api, std::move(good), device, concat("nvJPEG (", names, ")"));
}

}  // namespace levin::detail
