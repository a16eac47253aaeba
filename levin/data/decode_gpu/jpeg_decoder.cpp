#include "levin/data/decode_gpu/jpeg_decoder.h"

#include <map>
#include <mutex>
#include <utility>

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin::detail {
namespace {

/// The decoder of a device, as one loader sees it.
class LoaderJpegDecoder final : public GpuJpegDecoder {
 public:
  explicit LoaderJpegDecoder(std::shared_ptr<GpuJpegDecoder> shared) : shared_(std::move(shared)) {}
  std::string name() const override { return shared_->name(); }
  bool takes(std::span<const std::byte> file, const JpegHead& head) const override {
    return shared_->takes(file, head);
  }
  bool decode(std::span<const JpegJob> jobs, int channels, const Use& use) override {
    if (!shared_->decode(jobs, channels, use)) return false;
    decoded_.fetch_add(static_cast<int64_t>(jobs.size()), std::memory_order_relaxed);
    return true;
  }

 private:
  std::shared_ptr<GpuJpegDecoder> shared_;
};

}  // namespace

bool is_common_jpeg(const JpegHead& head) {
  if ((head.frame != 0xc0 && head.frame != 0xc1) || head.bit_depth != 8 || !head.is_interleaved || !head.is_whole)
    return false;
  if (head.components == 1) return true;
  if (head.components != 3 || head.is_rgb) return false;
  for (const int chroma : {1, 2})
    if (head.across[chroma] != 1 || head.down[chroma] != 1) return false;
  const int across = head.across[0], down = head.down[0];
  return (across == 1 || across == 2) && (down == 1 || down == 2);
}

std::shared_ptr<GpuJpegDecoder> shared_jpeg_decoder(c10::Device device, std::string& why) {
  if (!device.has_index()) return open_gpu_jpeg_decoder(device, why);  // which one that is may change
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::weak_ptr<GpuJpegDecoder>> decoders;
  const std::lock_guard lock(mutex);
  auto& known = decoders[device.index()];
  auto decoder = known.lock();
  if (!decoder) known = decoder = open_gpu_jpeg_decoder(device, why);
  return decoder;
}

std::shared_ptr<GpuJpegDecoder> choose_jpeg_decoder(const std::string& mode, c10::Device device,
                                                    const std::string& unplanned) {
  if (mode == "cpu") return nullptr;
  LEVIN_CHECK(mode == "auto" || unplanned.empty(), "[data] decode = \"gpu\" is not possible: ", unplanned,
              " (decode = \"auto\" or \"cpu\" decodes on the CPU)");
  if (!unplanned.empty()) {
    warn_once(concat("[data] decode = \"auto\": the CPU decodes, since ", unplanned));
    return nullptr;
  }
  std::string why = concat("batches go to ", device, ", not to a GPU");
  if (device.is_cuda())
    if (auto decoder = shared_jpeg_decoder(device, why)) return std::make_shared<LoaderJpegDecoder>(std::move(decoder));
  if (mode == "gpu" || device.is_cuda())
    warn_once(concat("[data] decode = \"", mode, "\": the CPU decodes, since ", why));
  return nullptr;
}

}  // namespace levin::detail
