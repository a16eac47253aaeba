#include "levin/nn/experts/exchange.h"

#include <numeric>

#include <torch/csrc/autograd/custom_function.h>

#include "levin/nn/tensor/part.h"

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Exchange : torch::autograd::Function<Exchange> {
  // saved_data takes no pointers: a holder that torch counts does.
  struct Holder : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Collective> r) : ranks(std::move(r)) {}
    std::shared_ptr<Collective> ranks;
  };

  static Tensor forward(AutogradContext* context, const Tensor& rows, std::vector<int64_t> sent,
                        std::vector<int64_t> received, std::shared_ptr<Collective> ranks) {
    auto result = all_to_all(*ranks, rows, sent, received);
    context->saved_data["sent"] = std::move(sent);
    context->saved_data["received"] = std::move(received);
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(ranks)));
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["ranks"].toCapsule());
    auto result = all_to_all(*holder->ranks, grads[0], context->saved_data["received"].toIntVector(),
                             context->saved_data["sent"].toIntVector());
    return {result, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor exchanged(const Tensor& rows, std::vector<int64_t> sent, std::vector<int64_t> received,
                 const std::shared_ptr<Collective>& ranks) {
  return Exchange::apply(rows, std::move(sent), std::move(received), ranks);
}

ExchangePlan plan_exchange(const std::vector<std::vector<int64_t>>& counts, int64_t rank) {
  ExchangePlan plan;
  const auto ranks = static_cast<int64_t>(counts.size()), experts = static_cast<int64_t>(counts[0].size());
  const auto sum = [](const std::vector<int64_t>& all, Share share) {
    const auto first = all.begin() + share.first;
    return std::accumulate(first, first + share.count, int64_t{0});
  };
  const auto own = Share::of(experts, ranks, rank);
  std::vector<int64_t> begins;  // of what each rank sends
  int64_t begin = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto& theirs = counts[static_cast<size_t>(r)];
    plan.sent.push_back(sum(counts[static_cast<size_t>(rank)], Share::of(experts, ranks, r)));
    plan.received.push_back(sum(theirs, own));
    begins.push_back(begin);
    begin += plan.received.back();
  }
  plan.order.reserve(static_cast<size_t>(begin));
  for (int64_t e = own.first; e < own.first + own.count; ++e) {
    int64_t rows = 0;
    for (size_t r = 0; r < counts.size(); ++r) {
      const auto count = counts[r][static_cast<size_t>(e)];
      for (int64_t i = 0; i < count; ++i) plan.order.push_back(begins[r] + i);
      begins[r] += count;
      rows += count;
    }
    plan.rows.push_back(rows);
  }
  return plan;
}

}  // namespace levin::nn
