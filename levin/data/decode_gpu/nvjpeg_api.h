#pragma once

#include <cstddef>
#include <string>

/// The few functions of nvJPEG that are used, found when they are first needed: neither its header nor its library is
/// needed to build, and a program starts without it.
struct CUstream_st;

namespace levin::detail {

struct NvJpegImage {
  unsigned char* channel[4] = {};
  size_t pitch[4] = {};
};

struct NvJpegApi {
  // Handles of the library.
  struct Library;
  struct State;
  struct Stream;
  struct Params;

  static constexpr int kYuv = 1;  // planes, chroma in its own size
  static constexpr int kGpuHybrid = 2, kHardware = 3;

  // All return 0 when it is done.
  int (*create)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags, Library** library);
  int (*destroy)(Library* library);
  int (*state_create)(Library* library, State** state);
  int (*state_destroy)(State* state);
  int (*stream_create)(Library* library, Stream** stream);
  int (*stream_destroy)(Stream* stream);
  int (*stream_parse_header)(Library* library, const unsigned char* data, size_t length, Stream* stream);
  int (*params_create)(Library* library, Params** params);
  int (*params_destroy)(Params* params);
  int (*params_set_output)(Params* params, int format);
  /// `supported` becomes 0 when it is.
  int (*batched_supported)(Library* library, Stream* stream, Params* params, int* supported);
  int (*batched_initialize)(Library* library, State* state, int batch, int threads, int format);
  int (*batched_decode)(Library* library, State* state, const unsigned char* const* data, const size_t* lengths,
                        NvJpegImage* images, CUstream_st* stream);

  /// Null, and `why`, where there is no such library.
  static const NvJpegApi* find(std::string& why);
};

}  // namespace levin::detail
