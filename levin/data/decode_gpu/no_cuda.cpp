// The null twin of nvjpeg_cuda.cpp, for builds without CUDA.
#include "levin/data/decode_gpu/jpeg_decoder.h"

namespace levin::detail {

std::unique_ptr<GpuJpegDecoder> open_gpu_jpeg_decoder(c10::Device, std::string& why) {
  why = "this Levin was built without CUDA (configure with LEVIN_CUDA=ON)";
  return nullptr;
}

}  // namespace levin::detail
