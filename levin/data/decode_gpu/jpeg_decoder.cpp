#include "levin/data/decode_gpu/jpeg_decoder.h"

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin::detail {

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
    if (std::shared_ptr<GpuJpegDecoder> decoder = open_gpu_jpeg_decoder(device, why)) return decoder;
  if (mode == "gpu" || device.is_cuda())
    warn_once(concat("[data] decode = \"", mode, "\": the CPU decodes, since ", why));
  return nullptr;
}

}  // namespace levin::detail
