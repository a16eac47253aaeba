#pragma once

#include "levin/kernels/played_device.h"

namespace levin::testing {

/// While it lives, meta tensors stand for those of a GPU.
class PlaysCuda {
 public:
  PlaysCuda() { kernels::set_played_device(c10::kCUDA); }
  ~PlaysCuda() { kernels::set_played_device(c10::kCPU); }
  PlaysCuda(const PlaysCuda&) = delete;
  PlaysCuda& operator=(const PlaysCuda&) = delete;
};

}  // namespace levin::testing
