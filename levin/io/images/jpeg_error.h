#pragma once

#include <csetjmp>
#include <cstdio>  // before jpeglib.h, which needs it

#include <jpeglib.h>

namespace levin::detail {

/// libjpeg's errors: it prints nothing, and what it cannot recover from jumps back to `place`. Frames between the two
/// hold nothing that has a destructor.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf place;
  char line[JMSG_LENGTH_MAX] = {};
};

/// To be given to a compressor or decompressor before it is made; `errors.manager` is the first member, so libjpeg's
/// pointer to it is one to the whole.
jpeg_error_mgr* quiet_jpeg_errors(JpegErrors& errors);

}  // namespace levin::detail
