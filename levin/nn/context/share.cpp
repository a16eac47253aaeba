#include "levin/nn/context/share.h"

#include <algorithm>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The order in which the tokens of all ranks, each of `most` rows, are the sequence: [length], or its inverse.
Tensor order_of(const ContextShare& share, int64_t length, c10::Device device) {
  const auto most = share.layout().most(length);
  std::vector<std::pair<int64_t, Tensor>> runs;
  for (int rank = 0; rank < share.size(); ++rank) {
    auto at = rank * most;
    for (const auto& run : share.layout().runs(length, rank)) {
      runs.emplace_back(run.first, at::arange(at, at + run.count, at::kLong));
      at += run.count;
    }
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Tensor> parts;
  for (const auto& [first, rows] : runs) parts.push_back(rows);
  return at::cat(parts).to(device);
}

/// saved_data takes no pointers: a holder that torch counts does.
struct ShareHolder : torch::CustomClassHolder {
  explicit ShareHolder(const ContextShare& of) : share(of) {}
  ContextShare share;
};

struct GatherContext : torch::autograd::Function<GatherContext> {
  static Tensor forward(AutogradContext* context, const Tensor& own, const ContextShare& share, int64_t dim,
                        int64_t length) {
    context->saved_data["share"] = c10::IValue::make_capsule(c10::make_intrusive<ShareHolder>(share));
    context->saved_data["dim"] = dim;
    context->saved_data["length"] = length;
    auto rows = own.transpose(0, dim);
    std::vector<int64_t> pad(static_cast<size_t>(2 * own.dim()), 0);
    pad.back() = share.layout().most(length) - rows.size(0);
    if (pad.back() > 0) rows = at::constant_pad_nd(rows, pad);
    const auto all = share.ranks().all_gather(rows.contiguous()).flatten(0, 1);
    return all.index_select(0, order_of(share, length, own.device())).transpose(0, dim).contiguous();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<ShareHolder>(context->saved_data["share"].toCapsule());
    const auto& share = holder->share;
    const auto dim = context->saved_data["dim"].toInt(), length = context->saved_data["length"].toInt();
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto rows = grads[0].transpose(0, dim);
    auto sizes = rows.sizes().vec();
    sizes[0] = share.size() * share.layout().most(length);
    auto all = at::zeros(sizes, rows.options());
    all.index_copy_(0, order_of(share, length, rows.device()), rows.contiguous());
    const auto own = share.ranks().reduce_scatter(all).narrow(0, 0, share.layout().count(length, share.rank()));
    result[0] = own.transpose(0, dim).contiguous();
    return result;
  }
};

struct MeanOverContext : torch::autograd::Function<MeanOverContext> {
  static Tensor forward(AutogradContext* context, const Tensor& loss, const Tensor& count, const ContextShare& share) {
    const auto number = count.to(loss.scalar_type());
    // Where no token counts the loss of them is 0 / 0.
    auto both = at::stack({at::where(number > 0, loss * number, at::zeros({}, loss.options())), number});
    share.ranks().all_reduce(both);
    // The ranks' gradients are averaged later, and this is a sum over them.
    context->save_for_backward({number / both[1].clamp_min(1) * share.size()});
    return both[0] / both[1];
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list result(3);
    if (grads[0].defined()) result[0] = grads[0] * context->get_saved_variables()[0];
    return result;
  }
};

}  // namespace

ContextShare::ContextShare(std::shared_ptr<Collective> ranks, ContextParallelOptions options, bool balanced)
    : ranks_(std::move(ranks)), options_(options), layout_{ranks_->size(), balanced} {}

void ContextShare::check_tokens(const Tensor& tokens) const {
  if (tokens.is_meta()) return;
  auto call = fmt::format("a forward of [{}]", fmt::join(tokens.sizes(), ", "));
  if (!compared_ && !tokens.is_floating_point())
    call += fmt::format(" whose sum is {}", tokens.sum(at::kLong).item<int64_t>());
  ranks_->agree("context_parallel", call);
  compared_ = true;
}

Tensor ContextShare::take(const Tensor& whole, int64_t dim) const {
  std::vector<Tensor> parts;
  for (const auto& run : layout_.runs(whole.size(dim), rank()))
    parts.push_back(whole.narrow(dim, run.first, run.count));
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

Tensor ContextShare::mask(const Tensor& given, int64_t length) {
  return given.defined() ? given : at::empty({0, length}, at::kLong);
}

Tensor ContextShare::gathered(const Tensor& own, int64_t dim, int64_t length) const {
  return GatherContext::apply(own, *this, dim < 0 ? dim + own.dim() : dim, length);
}

Tensor ContextShare::mean(const Tensor& loss, const Tensor& count) const {
  return MeanOverContext::apply(loss, count, *this);
}

}  // namespace levin
