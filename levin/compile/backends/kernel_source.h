#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levin/compile/group.h"

namespace levin::compile {

/// What a source is made for.
struct CudaTarget {
  /// Streaming multiprocessors: how many blocks keep the device busy.
  int processors = 132;
  /// All pointers are multiples of 16 bytes; without it numbers are read one by one.
  bool aligned = true;
};

/// One kernel of a source. All take the same arguments: the group's pointers in order, then the workspace.
struct CudaLaunch {
  std::string kernel;
  int64_t blocks = 0, blocks_y = 1;
  int threads = 0, threads_y = 1;
};

/// CUDA C++ of a group, for NVRTC, without headers. Kernels are launched in order.
struct CudaSource {
  std::string text;
  std::vector<CudaLaunch> launches;
  int64_t workspace_bytes = 0;
  /// How many neighbouring elements a thread computes at once.
  int vector = 1;
};

/// Text that depends on the group and the target alone: equal groups have equal text.
CudaSource cuda_source(const Group& group, const CudaTarget& target = {});

/// Helpers that every source begins with.
std::string_view cuda_prelude();

}  // namespace levin::compile
