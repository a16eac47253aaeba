#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "levin/compile/group.h"

namespace levin::compile {

/// The kernel of a group on a device; equal groups share one. Throws an Error where it cannot be made.
std::shared_ptr<GroupKernel> make_kernel(const Group& group, c10::Device device);

/// Vector loops over blocks that fit into the first cache.
std::shared_ptr<GroupKernel> make_cpu_kernel(const Group& group);
/// A source compiled by NVRTC, or found in the cache on disk.
std::shared_ptr<GroupKernel> make_cuda_kernel(const Group& group, c10::Device device);
/// Empty, or why groups cannot be compiled for the GPUs of this machine.
std::string why_no_cuda_kernels();

}  // namespace levin::compile
