#include "levin/distributed/single.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/distributed/checks.h"

namespace levin {

// What is refused among many is refused here too, so that a program does not first fail when it is spread out.
void SingleCollective::all_reduce(Tensor& tensor, ReduceOp op) {
  detail::check_reducible("all_reduce", tensor, op);
}

Tensor SingleCollective::all_gather(const Tensor& tensor) {
  detail::check_dense("all_gather", tensor);
  return tensor.detach().unsqueeze(0).clone();
}

void SingleCollective::broadcast(Tensor& tensor, int src) {
  detail::check_dense("broadcast", tensor);
  detail::check_source("broadcast", src, 1);
}

Tensor SingleCollective::reduce_scatter(const Tensor& input, ReduceOp op) {
  detail::check_reducible("reduce_scatter", input, op);
  detail::check_scatterable(input, 1);
  return input.detach().clone();
}

void SingleCollective::barrier(std::string_view) {}

c10::intrusive_ptr<c10d::ProcessGroup> SingleCollective::process_group() const {
  return {};
}

c10::intrusive_ptr<c10d::Store> SingleCollective::store() const {
  return {};
}

std::shared_ptr<Collective> SingleCollective::part(const std::vector<int>&, const std::string&) {
  return std::make_shared<SingleCollective>();
}

}  // namespace levin
