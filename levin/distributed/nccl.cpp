#include "levin/distributed/nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace levin::detail {

std::string why_no_nccl() {
  return {};
}

c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                            c10::Device device, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // Bound to its device: NCCL then need not guess it from the first tensor, and a barrier uses the right one.
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace levin::detail
