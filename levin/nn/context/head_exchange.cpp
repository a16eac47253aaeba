#include "levin/nn/context/head_exchange.h"

#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Tokens of each rank.
std::vector<int64_t> counts_of(const ContextLayout& layout, int64_t length) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < layout.size; ++rank) counts.push_back(layout.count(length, rank));
  return counts;
}

Tensor to_heads(const Tensor& own, int64_t length, const ContextShare& share) {
  const int64_t n = share.size(), b = own.size(0), t = own.size(1), h = own.size(2) / n, d = own.size(3);
  const auto rows = own.view({b, t, n, h, d}).permute({2, 1, 0, 3, 4}).reshape({n * t, b, h, d});
  const std::vector<int64_t> sent(static_cast<size_t>(n), t);
  const auto all = all_to_all(share.ranks(), rows, sent, counts_of(share.layout(), length));  // [T, B, h, D]
  return all.index_select(0, share.layout().order(length, 0, own.device())).transpose(0, 1).contiguous();
}

Tensor to_tokens(const Tensor& whole, const ContextShare& share) {
  const int64_t n = share.size(), b = whole.size(0), length = whole.size(1), h = whole.size(2), d = whole.size(3);
  const auto rows = whole.transpose(0, 1);
  auto all = at::empty({length, b, h, d}, whole.options());
  all.index_copy_(0, share.layout().order(length, 0, whole.device()), rows.contiguous());
  const auto t = share.layout().count(length, share.rank());
  const std::vector<int64_t> received(static_cast<size_t>(n), t);
  const auto own = all_to_all(share.ranks(), all, counts_of(share.layout(), length), received);
  return own.view({n, t, b, h, d}).permute({2, 1, 0, 3, 4}).reshape({b, t, n * h, d});
}

/// saved_data takes no pointers: a holder that torch counts does.
struct HeadShareHolder : torch::CustomClassHolder {
  explicit HeadShareHolder(SharedContext of) : share(std::move(of)) {}
  SharedContext share;
};

/// Each way is the other's gradient: numbers only move.
struct ExchangeHeads : torch::autograd::Function<ExchangeHeads> {
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t length, bool heads, SharedContext share) {
    context->saved_data["share"] = c10::IValue::make_capsule(c10::make_intrusive<HeadShareHolder>(share));
    context->saved_data["length"] = length;
    context->saved_data["heads"] = heads;
    return heads ? to_heads(x.contiguous(), length, *share) : to_tokens(x, *share);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<HeadShareHolder>(context->saved_data["share"].toCapsule());
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto& share = *holder->share;
    result[0] = context->saved_data["heads"].toBool()
                    ? to_tokens(grads[0], share)
                    : to_heads(grads[0].contiguous(), context->saved_data["length"].toInt(), share);
    return result;
  }
};

}  // namespace

Tensor heads_of_sequence(const Tensor& own, int64_t length, const SharedContext& share) {
  return ExchangeHeads::apply(own, length, true, share);
}

Tensor tokens_of_heads(const Tensor& whole, const SharedContext& share) {
  return ExchangeHeads::apply(whole, whole.size(1), false, share);
}

}  // namespace levin::nn
