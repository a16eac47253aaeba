#include "levin/strategies/sync_batchnorm.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "levin/core/dispatch.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/distributed/checks.h"

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Everything but the channels.
std::vector<int64_t> reduced_dims(const Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t i = 2; i < x.dim(); ++i) dims.push_back(i);
  return dims;
}

/// [C] as it must stand beside x.
Tensor along_channels(const Tensor& values, const Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

struct Statistics {
  Tensor mean, var;  // [C], biased
  Tensor count;      // elements a channel, over all ranks
};

/// Each rank sends the mean and the sum of squared deviations of its part, which are combined pairwise exactly. Sums of
/// squares would be one message less and lose the small variances.
Statistics global_statistics(const Tensor& x, Collective& group) {
  const auto channels = x.size(1);
  const auto count = static_cast<double>(x.numel() / std::max<int64_t>(channels, 1));
  const auto dims = reduced_dims(x);
  auto own = at::zeros({2 * channels + 1}, x.options());
  if (count > 0) {
    auto mean = x.mean(dims);
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels).copy_((x - along_channels(mean, x)).square_().sum(dims));
    own[2 * channels].fill_(count);
  }
  auto all = at::empty({group.size() * own.numel()}, own.options());
  group.run("sync_batch_norm",
            [&](c10d::ProcessGroup& process_group) { process_group._allgather_base(all, own)->wait(); });
  all = all.view({group.size(), own.numel()});
  const auto means = all.narrow(1, 0, channels);              // [W, C]
  const auto deviations = all.narrow(1, channels, channels);  // [W, C]
  const auto counts = all.narrow(1, 2 * channels, 1);         // [W, 1]
  const auto total = counts.sum();
  const auto mean = (means * counts).sum(0) / total;
  const auto var = (deviations + (means - mean).square() * counts).sum(0) / total;
  return {mean, var, total};
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, const Tensor& bias,
                               double eps, Collective* group) {
    const auto dtype = input.scalar_type();
    const auto x = input.to(at::promote_types(dtype, at::kFloat));
    const auto statistics = global_statistics(x, *group);
    const auto inverse_std = (statistics.var + eps).rsqrt();
    auto y = (x - along_channels(statistics.mean, x)) * along_channels(inverse_std * weight.to(x.scalar_type()), x) +
             along_channels(bias.to(x.scalar_type()), x);
    ctx->save_for_backward({input, weight, statistics.mean, inverse_std, statistics.count});
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    ctx->mark_non_differentiable({statistics.mean, statistics.var, statistics.count});
    return {y.to(dtype), statistics.mean, statistics.var, statistics.count};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse_std = saved[3], &count = saved[4];
    auto& group = *reinterpret_cast<Collective*>(ctx->saved_data["group"].toInt());
    const auto x = input.to(at::promote_types(input.scalar_type(), at::kFloat));
    const auto dy = grads[0].to(x.scalar_type());
    const auto dims = reduced_dims(x);
    const auto normalized = (x - along_channels(mean, x)) * along_channels(inverse_std, x);
    auto sum_dy = dy.sum(dims);
    auto sum_dy_normalized = (dy * normalized).sum(dims);
    // The gradients of weight and bias stay this rank's: whoever averages gradients averages these too.
    const auto grad_weight = ctx->needs_input_grad(1) ? sum_dy_normalized.to(weight.scalar_type()) : Tensor();
    const auto grad_bias = ctx->needs_input_grad(2) ? sum_dy.to(weight.scalar_type()) : Tensor();
    if (!ctx->needs_input_grad(0)) return {Tensor(), grad_weight, grad_bias, Tensor(), Tensor()};

    auto sums = at::cat({sum_dy, sum_dy_normalized});
    std::vector<Tensor> tensors{sums};
    group.run("sync_batch_norm", [&](c10d::ProcessGroup& process_group) { process_group.allreduce(tensors)->wait(); });
    const auto means = sums / count;
    auto dx = dy - along_channels(means.narrow(0, 0, x.size(1)), x) -
              normalized * along_channels(means.narrow(0, x.size(1), x.size(1)), x);
    return {(dx * along_channels(inverse_std * weight.to(x.scalar_type()), x)).to(input.scalar_type()), grad_weight,
            grad_bias, Tensor(), Tensor()};
  }
};

/// Of the scopes of this thread, the newest last.
thread_local std::vector<Collective*> scope_groups;
/// Others include the key for their own sake.
thread_local bool included_before = false;
/// Threads of backward have the dispatch keys of the thread that started it, but not its variables.
std::atomic<Collective*> newest_group = nullptr;

Collective* group_in_scope() {
  return scope_groups.empty() ? newest_group.load() : scope_groups.back();
}

constexpr auto kScopeKey = detail::kLowerKey;

Tensor batch_norm_in_scope(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                           const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var,
                           bool training, double momentum, double eps, bool cudnn_enabled) {
  c10::impl::ExcludeDispatchKeyGuard guard(kScopeKey);
  auto* group = group_in_scope();
  if (!training || !group)
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  return sync_batch_norm(input, weight.value_or(Tensor()), bias.value_or(Tensor()), running_mean.value_or(Tensor()),
                         running_var.value_or(Tensor()), momentum, eps, training, *group);
}

/// Registered when the first scope is made and kept for the life of the process.
void register_scope_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::let_others_pass(kScopeKey);
    static torch::Library kernels(torch::Library::IMPL, "aten", kScopeKey, __FILE__, __LINE__);
    kernels.impl("batch_norm", TORCH_FN(batch_norm_in_scope));
  });
}

}  // namespace

Tensor sync_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, double momentum, double eps, bool training, Collective& group) {
  LEVIN_CHECK(x.dim() >= 2, "[sync_batch_norm] the input is ", detail::describe(x),
              "; it must have 2 dimensions or more");
  if (!training || group.size() == 1)
    return at::batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps,
                          at::globalContext().userEnabledCuDNN());
  const auto options = x.options().dtype(at::promote_types(x.scalar_type(), at::kFloat)).requires_grad(false);
  auto results = SyncBatchNormFunction::apply(x, weight.defined() ? weight : at::ones({x.size(1)}, options),
                                              bias.defined() ? bias : at::zeros({x.size(1)}, options), eps, &group);
  if (running_mean.defined()) {
    at::NoGradGuard no_grad;
    const auto &mean = results[1], &var = results[2], &count = results[3];
    const auto unbiased = var * (count / (count - 1));
    // As torch does it, without a new version: an earlier forward may have saved these for its backward.
    at::AutoDispatchBelowADInplaceOrView guard;
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum).add_(unbiased.to(running_var.scalar_type()), momentum);
  }
  return results[0];
}

SyncBatchNormImpl::SyncBatchNormImpl(int64_t num_features, std::shared_ptr<Collective> group,
                                     SyncBatchNormOptions options)
    : num_features_(num_features), group_(std::move(group)), options_(options) {
  LEVIN_CHECK(num_features > 0, "[SyncBatchNorm] num_features is ", num_features, "; it must be at least 1");
  reset();
}

void SyncBatchNormImpl::reset() {
  weight = register_parameter("weight", options_.affine ? at::ones({num_features_}) : Tensor(), options_.affine);
  bias = register_parameter("bias", options_.affine ? at::zeros({num_features_}) : Tensor(), options_.affine);
  const bool tracks = options_.track_running_stats;
  running_mean = register_buffer("running_mean", tracks ? at::zeros({num_features_}) : Tensor());
  running_var = register_buffer("running_var", tracks ? at::ones({num_features_}) : Tensor());
  num_batches_tracked = register_buffer("num_batches_tracked", tracks ? at::zeros({}, at::kLong) : Tensor());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("levin::SyncBatchNorm({}, eps={}, affine={}, track_running_stats={})", num_features_,
                        options_.eps, options_.affine, options_.track_running_stats);
}

Tensor SyncBatchNormImpl::forward(const Tensor& x) {
  LEVIN_CHECK(x.dim() >= 2 && x.size(1) == num_features_, "[SyncBatchNorm] the input is ", detail::describe(x),
              "; its second dimension must be ", num_features_);
  const bool uses_batch = is_training() || !options_.track_running_stats;
  double momentum = options_.momentum.value_or(0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked.add_(1);
    if (!options_.momentum) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  const bool updates = is_training() && options_.track_running_stats;
  const auto& mean = uses_batch && !updates ? Tensor() : running_mean;
  const auto& var = uses_batch && !updates ? Tensor() : running_var;
  if (!group_ || !is_training())
    return at::batch_norm(x, weight, bias, mean, var, uses_batch, momentum, options_.eps,
                          at::globalContext().userEnabledCuDNN());
  return sync_batch_norm(x, weight, bias, mean, var, momentum, options_.eps, true, *group_);
}

SyncBatchNormScope::SyncBatchNormScope(Collective& group) : group_(&group) {
  register_scope_kernels();
  if (scope_groups.empty()) included_before = c10::impl::tls_is_dispatch_key_included(kScopeKey);
  scope_groups.push_back(&group);
  newest_group = &group;
  c10::impl::tls_set_dispatch_key_included(kScopeKey, true);
}

SyncBatchNormScope::~SyncBatchNormScope() {
  const auto mine = std::find(scope_groups.rbegin(), scope_groups.rend(), group_);
  if (mine != scope_groups.rend()) scope_groups.erase(std::prev(mine.base()));
  newest_group = scope_groups.empty() ? nullptr : scope_groups.back();
  if (scope_groups.empty()) c10::impl::tls_set_dispatch_key_included(kScopeKey, included_before);
}

}  // namespace levin
