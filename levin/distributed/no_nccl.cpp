#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "levin/core/error.h"
#include "levin/distributed/nccl.h"

namespace levin::detail {

std::string why_no_nccl() {
  return "this build of Levin has no CUDA (configure with LEVIN_CUDA=ON)";
}

c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store>, int, int, c10::Device,
                                            std::chrono::milliseconds, std::shared_ptr<TrafficCounter>) {
  throw Error("[join] backend \"nccl\" cannot be used: " + why_no_nccl());
}

}  // namespace levin::detail
