#include "levin/distributed/single.h"

#include <algorithm>

#include <ATen/ops/empty.h>
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

namespace {

/// The copy that is sent: sums of 16 bits are taken in 32.
Tensor sent_copy(const Tensor& tensor) {
  const bool narrow = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  auto sent = narrow ? tensor.detach().to(at::kFloat) : tensor.detach();
  return sent.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

void ImaginedCollective::all_reduce(Tensor& tensor, ReduceOp op) {
  detail::check_reducible("all_reduce", tensor, op);
  tensor.detach().copy_(sent_copy(tensor).to(tensor.scalar_type()));
}

Tensor ImaginedCollective::all_gather(const Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size_);
  return tensor.detach().unsqueeze(0).expand(sizes).clone(at::MemoryFormat::Contiguous);
}

void ImaginedCollective::broadcast(Tensor& tensor, int src) {
  detail::check_dense("broadcast", tensor);
  detail::check_source("broadcast", src, size_);
}

std::vector<int64_t> ImaginedCollective::exchange(std::string_view, int64_t number) {
  return std::vector<int64_t>(static_cast<size_t>(size_), number);
}

std::unique_ptr<Transfer> ImaginedCollective::start(std::string_view, std::vector<Message> messages) {
  class UnderWay final : public Transfer {
   public:
    explicit UnderWay(std::vector<Message> messages) : messages_(std::move(messages)) {}
    void wait() override { messages_.clear(); }

   private:
    std::vector<Message> messages_;
  };
  return std::make_unique<UnderWay>(std::move(messages));
}

std::shared_ptr<Collective> ImaginedCollective::part(const std::vector<int>& ranks, const std::string&) {
  const auto place = std::ranges::find(ranks, rank_) - ranks.begin();
  return std::make_shared<ImaginedCollective>(static_cast<int>(place), static_cast<int>(ranks.size()));
}

Tensor ImaginedCollective::reduce_scatter(const Tensor& input, ReduceOp op) {
  detail::check_reducible("reduce_scatter", input, op);
  detail::check_scatterable(input, size_);
  const auto sent = sent_copy(input);
  auto sizes = input.sizes().vec();
  sizes[0] /= size_;
  return at::empty(sizes, sent.options()).to(input.scalar_type());
}

}  // namespace levin
