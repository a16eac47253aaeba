#include "levin/testing/boring.h"

#include <ATen/CPUGeneratorImpl.h>

namespace levin::testing {

BoringModuleImpl::BoringModuleImpl(int64_t in, int64_t out) {
  layer = register_module("layer", torch::nn::Linear(in, out));
}

std::pair<at::Tensor, at::Tensor> boring_data(int64_t n, int64_t features, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto x = at::randn({n, features}, generator);
  auto y = at::randn({n, 2}, generator);
  return {x, y};
}

at::Tensor shard_of(const at::Tensor& full, int rank, int world) {
  const auto rows = full.size(0) / world;
  return full.narrow(0, rank * rows, rows);
}

}  // namespace levin::testing
