#include <dlfcn.h>

#include "levin/core/error.h"
#include "levin/data/decode_gpu/nvjpeg_api.h"

namespace levin::detail {
namespace {

struct FoundNvJpeg {
  NvJpegApi api;
  std::string why;

  FoundNvJpeg() {
    void* library = nullptr;
    // The wheels' folder is in the run path of this library; a toolkit's is where it always is.
    for (const char* name :
         {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so", "/usr/local/cuda/lib64/libnvjpeg.so"})
      if ((library = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!library) {
      why = "libnvjpeg is not there (of the CUDA toolkit, or of the wheel nvidia-nvjpeg on LD_LIBRARY_PATH)";
      return;
    }
    const auto function = [&](auto& pointer, const char* name) {
      void* found = dlsym(library, name);
      if (!found && why.empty()) why = concat("libnvjpeg has no ", name, "; one of CUDA 12 or later is needed");
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(found);
    };
    function(api.create, "nvjpegCreateEx");
    function(api.destroy, "nvjpegDestroy");
    function(api.state_create, "nvjpegJpegStateCreate");
    function(api.state_destroy, "nvjpegJpegStateDestroy");
    function(api.stream_create, "nvjpegJpegStreamCreate");
    function(api.stream_destroy, "nvjpegJpegStreamDestroy");
    function(api.stream_parse_header, "nvjpegJpegStreamParseHeader");
    function(api.params_create, "nvjpegDecodeParamsCreate");
    function(api.params_destroy, "nvjpegDecodeParamsDestroy");
    function(api.params_set_output, "nvjpegDecodeParamsSetOutputFormat");
    function(api.batched_supported, "nvjpegDecodeBatchedSupportedEx");
    function(api.batched_initialize, "nvjpegDecodeBatchedInitialize");
    function(api.batched_decode, "nvjpegDecodeBatched");
  }
};

}  // namespace

const NvJpegApi* NvJpegApi::find(std::string& why) {
  static const FoundNvJpeg found;  // stays loaded: a library with threads and contexts of its own
  if (found.why.empty()) return &found.api;
  why = found.why;
  return nullptr;
}

}  // namespace levin::detail
