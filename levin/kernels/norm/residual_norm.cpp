#include "levin/kernels/norm/residual_norm.h"

#include <array>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/decode/few_rows.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/known_sums.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/kernels/norm/residual_norm_launch.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;
using MaybeType = std::optional<at::ScalarType>;

MaybeTensor maybe(const Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

at::ScalarType wide_dtype(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// ---- in operators of torch: the kernels of the CPU, and gradients that can be differentiated again

struct Normed {
  Tensor values, mean, rstd;
};

Normed normalized(const Tensor& x, double eps, bool rms) {
  Normed result;
  auto centered = x.to(wide_dtype(x));
  if (!rms) {
    result.mean = centered.mean(-1, /*keepdim=*/true);
    centered = centered - result.mean;
  }
  result.rstd = (centered.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  result.values = centered * result.rstd;
  return result;
}

NormResults norm_on_cpu(const Tensor& stream, const MaybeTensor& branch, const Tensor& weight, const MaybeTensor& bias,
                        double eps, bool rms, double dropout, at::ScalarType output) {
  LEVIN_CHECK(dropout == 0, "[residual_norm] dropout is not a part of the operator on the CPU");
  Tensor sum;
  if (branch) sum = stream + *branch;
  const auto& h = branch ? sum : stream;
  const auto normed = normalized(h, eps, rms);
  auto result = normed.values * weight.to(wide_dtype(h));
  if (bias) result = result + bias->to(wide_dtype(h));
  return {result.to(output), sum, rms ? Tensor() : normed.mean.reshape({-1}), normed.rstd.reshape({-1}), Tensor()};
}

/// `branch_factor`: what dropout has multiplied the branch with, or undefined.
NormGradients norm_gradients(const Tensor& grad_output, const Tensor& grad_stream, const Tensor& stream,
                             const Tensor& weight, double eps, bool rms, const Tensor& branch_factor,
                             MaybeType branch_dtype, bool for_weight, MaybeType bias_dtype,
                             MaybeType sums_dtype = std::nullopt) {
  const auto wide = wide_dtype(stream);
  Tensor grad, grad_weight, grad_bias;
  if (grad_output.defined()) {
    const auto normed = normalized(stream, eps, rms);
    const auto given = grad_output.to(wide), weighted = given * weight.to(wide);
    grad = weighted - normed.values * (weighted * normed.values).mean(-1, /*keepdim=*/true);
    if (!rms) grad = grad - weighted.mean(-1, /*keepdim=*/true);
    grad = grad * normed.rstd;
    const auto columns = stream.size(-1);
    if (for_weight) grad_weight = (given * normed.values).reshape({-1, columns}).sum(0).to(weight.scalar_type());
    if (bias_dtype) grad_bias = given.reshape({-1, columns}).sum(0).to(*bias_dtype);
  }
  if (grad_stream.defined()) grad = grad.defined() ? grad + grad_stream.to(wide) : grad_stream.to(wide);
  Tensor grad_branch, sums;
  if (branch_dtype) grad_branch = (branch_factor.defined() ? grad * branch_factor.to(wide) : grad).to(*branch_dtype);
  if (sums_dtype) sums = grad.reshape({-1, stream.size(-1)}).sum(0).to(*sums_dtype);
  return {grad.to(stream.scalar_type()), grad_branch, grad_weight, grad_bias, sums};
}

NormGradients gradients_on_cpu(const MaybeTensor& grad_output, const MaybeTensor& grad_stream, const Tensor& stream,
                               const Tensor& weight, const MaybeTensor&, const Tensor&, const MaybeTensor&, double eps,
                               bool rms, double, MaybeType branch_dtype, bool for_weight, MaybeType bias_dtype,
                               MaybeType sums_dtype) {
  return norm_gradients(grad_output.value_or(Tensor()), grad_stream.value_or(Tensor()), stream, weight, eps, rms, {},
                        branch_dtype, for_weight, bias_dtype, sums_dtype);
}

// ---- on meta tensors: what the kernels of CUDA allocate

NormResults norm_on_meta(const Tensor& stream, const MaybeTensor& branch, const Tensor&, const MaybeTensor&, double,
                         bool rms, double dropout, at::ScalarType output) {
  const auto rows = stream.size(-1) > 0 ? stream.numel() / stream.size(-1) : 0;
  const auto statistics = stream.options().dtype(wide_dtype(stream));
  return {at::empty(stream.sizes(), stream.options().dtype(output)),
          branch ? at::empty_like(stream, at::MemoryFormat::Contiguous) : Tensor(),
          rms ? Tensor() : at::empty({rows}, statistics), at::empty({rows}, statistics),
          branch && dropout > 0 ? at::empty({2}, stream.options().dtype(at::kLong)) : Tensor()};
}

NormGradients gradients_on_meta(const MaybeTensor& grad_output, const MaybeTensor&, const Tensor& stream,
                                const Tensor& weight, const MaybeTensor&, const Tensor& rstd, const MaybeTensor&,
                                double, bool, double, MaybeType branch_dtype, bool for_weight, MaybeType bias_dtype,
                                MaybeType sums_dtype) {
  NormGradients result;
  std::get<0>(result) = at::empty_like(stream, at::MemoryFormat::Contiguous);
  if (branch_dtype) std::get<1>(result) = at::empty(stream.sizes(), stream.options().dtype(*branch_dtype));
  if (!grad_output || (!for_weight && !bias_dtype && !sums_dtype)) return result;
  if (for_weight) std::get<2>(result) = at::empty_like(weight);
  if (bias_dtype) std::get<3>(result) = at::empty({weight.numel()}, weight.options().dtype(*bias_dtype));
  if (stream.numel() == 0) return result;
  const auto columns = stream.size(-1);
  const auto plan =
      norm_backward_plan(stream.numel() / columns, columns, number_type("residual_norm", stream.scalar_type()),
                         number_type("residual_norm", grad_output->scalar_type()), /*aligned=*/true,
                         {.processors = kPlayedProcessors, .shared_memory = kPlayedSharedMemory});
  const bool sums = sums_dtype && plan.packs;
  if (sums) std::get<4>(result) = at::empty({columns}, stream.options().dtype(*sums_dtype));
  if (for_weight || bias_dtype || sums)
    (void)at::empty({sums ? 3 : 2, plan.blocks, columns}, rstd.options());  // gone when the sums are there
  return result;
}

// ---- the operators

struct NormOps : Operators {
  Operator<decltype(norm_on_cpu)> forward = add(
      "residual_norm(Tensor stream, Tensor? branch, Tensor weight, Tensor? bias, float eps, bool rms, float dropout, "
      "ScalarType output) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      norm_on_meta, norm_on_cpu, {at::Tag::nondeterministic_seeded});
  Operator<decltype(gradients_on_cpu)> backward = add(
      "residual_norm_backward(Tensor? grad_output, Tensor? grad_stream, Tensor stream, Tensor weight, Tensor? mean, "
      "Tensor rstd, Tensor? random, float eps, bool rms, float dropout, ScalarType? branch_dtype, bool for_weight, "
      "ScalarType? bias_dtype, ScalarType? sums_dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      gradients_on_meta, gradients_on_cpu);

  NormOps() { register_residual_norm_cuda(cuda); }
};

// ---- autograd

/// What backward needs to know beside the tensors, as numbers.
struct NormFacts {
  double eps, dropout;
  bool rms;
  MaybeType branch, bias;

  static double number(MaybeType type) { return type ? static_cast<double>(*type) : -1.0; }
  static MaybeType type(double number) {
    return number < 0 ? std::nullopt : MaybeType(static_cast<at::ScalarType>(static_cast<int>(number)));
  }
  c10::List<double> packed() const {
    return c10::List<double>({eps, dropout, static_cast<double>(rms), number(branch), number(bias)});
  }
  static NormFacts unpacked(const std::vector<double>& list) {
    return {list[0], list[1], list[2] != 0, type(list[3]), type(list[4])};
  }
};

/// The sum is a result and is kept for backward. Where keeping it throws (a checkpointed unit that runs again ends so),
/// torch leaves it in the list of what is to be kept, and the graph holds itself for ever.
struct KeptSum {
  AutogradContext* context = nullptr;
  Tensor sum;

  void forget() {
    // With a node the sum holds it, and the context with it.
    if (sum.defined() && sum.grad_fn()) context->save_for_backward({});
  }
};

struct ResidualNorm : torch::autograd::Function<ResidualNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& stream, const MaybeTensor& branch,
                               const Tensor& weight, const MaybeTensor& bias, double eps, bool rms, double dropout,
                               at::ScalarType output_dtype, KeptSum* kept) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, sum, mean, rstd, random] =
        operators<NormOps>().forward.call(stream, branch, weight, bias, eps, rms, dropout, output_dtype);
    context->set_materialize_grads(false);
    context->save_for_backward({branch ? sum : stream, weight, mean, rstd, random});
    if (branch) *kept = {context, sum};
    const NormFacts facts{eps, dropout, rms, branch ? MaybeType(branch->scalar_type()) : std::nullopt,
                          bias ? MaybeType(bias->scalar_type()) : std::nullopt};
    context->saved_data["facts"] = facts.packed();
    return {output, branch ? sum : stream};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto facts = NormFacts::unpacked(context->saved_data["facts"].toDoubleVector());
    const auto& grad_output = grads[0];
    const auto& grad_stream = grads[1];
    variable_list result(9);
    if (!grad_output.defined() && !grad_stream.defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto &stream = saved[0], &weight = saved[1], &random = saved[4];
    size_t edge = 1;
    const bool for_branch = facts.branch && context->needs_input_grad(edge++);
    const bool for_weight = context->needs_input_grad(edge++);
    const bool for_bias = facts.bias && context->needs_input_grad(edge++);
    const auto own_branch =
        for_branch && (random.defined() || facts.branch != stream.scalar_type()) ? facts.branch : MaybeType();
    const auto bias = for_bias ? facts.bias : MaybeType();
    // A layer before a norm with a bias has one too, as a rule.
    const auto sums_dtype = for_branch && adds_columns_up(stream) ? facts.bias : MaybeType();
    auto [grad_sum, grad_branch, grad_weight, grad_bias, sums] =
        at::GradMode::is_enabled()
            ? norm_gradients(grad_output, grad_stream, stream, weight, facts.eps, facts.rms,
                             own_branch ? factors(stream, weight, saved[3], random, facts) : Tensor(), own_branch,
                             for_weight, bias)
            : computed(grad_output, grad_stream, saved, facts, own_branch, for_weight, bias, sums_dtype);
    result[0] = grad_sum;
    if (for_branch) result[1] = own_branch ? grad_branch : grad_sum;
    if (for_branch && sums.defined()) remember_column_sums(result[1], sums);
    result[2] = grad_weight;
    result[3] = grad_bias;
    return result;
  }

 private:
  static NormGradients computed(const Tensor& grad_output, const Tensor& grad_stream, const variable_list& saved,
                                const NormFacts& facts, MaybeType own_branch, bool for_weight, MaybeType bias,
                                MaybeType sums) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // Without a norm to go through, the gradient of the stream is the whole of it.
    if (!grad_output.defined() && !own_branch) return {grad_stream, {}, {}, {}, {}};
    return operators<NormOps>().backward.call(maybe(grad_output), maybe(grad_stream), saved[0], saved[1],
                                              maybe(saved[2]), saved[3], maybe(saved[4]), facts.eps, facts.rms,
                                              facts.dropout, own_branch, for_weight, bias, sums);
  }

  /// The factors of dropout: the gradient that reaches the branch where one of ones reaches the stream.
  static Tensor factors(const Tensor& stream, const Tensor& weight, const Tensor& rstd, const Tensor& random,
                        const NormFacts& facts) {
    if (!random.defined()) return {};
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    return std::get<1>(operators<NormOps>().backward.call(
        std::nullopt, at::ones_like(stream), stream, weight, std::nullopt, rstd, random, facts.eps, facts.rms,
        facts.dropout, stream.scalar_type(), /*for_weight=*/false, std::nullopt, std::nullopt));
  }
};

}  // namespace

NormedStream fused_residual_norm(const Tensor& stream, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                                 double eps, bool rms, double dropout, at::ScalarType output) {
  KeptSum kept;
  try {
    const auto results = ResidualNorm::apply(stream, maybe(branch), weight, maybe(bias), eps, rms,
                                             branch.defined() ? dropout : 0.0, output, &kept);
    return {results[0], results[1]};
  } catch (...) {
    kept.forget();
    throw;
  }
}

}  // namespace detail

NormedStream residual_norm(const Tensor& stream, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                           double eps, bool rms, double dropout) {
  LEVIN_CHECK(stream.dim() > 0 && weight.dim() == 1 && stream.size(-1) == weight.size(0) &&
                  (!bias.defined() || bias.sizes() == weight.sizes()),
              "[residual_norm] needs a stream [..., C], weight [C] and bias [C], got ", stream.sizes(), " and ",
              weight.sizes());
  LEVIN_CHECK(!branch.defined() || branch.sizes() == stream.sizes(), "[residual_norm] the branch is ", branch.sizes(),
              ", the stream ", stream.sizes(), "; they must be equal");
  LEVIN_CHECK(dropout >= 0 && dropout <= 1, "[residual_norm] dropout ", dropout, " is not in 0 to 1");
  // A stream of a narrower dtype than the branch is promoted, as in a sum.
  const bool widens =
      branch.defined() && at::promote_types(stream.scalar_type(), branch.scalar_type()) != stream.scalar_type();
  if (!widens && detail::runs_fused(stream)) {
    const auto autocast = stream.scalar_type() == at::kFloat ? detail::autocast_dtype(stream) : std::nullopt;
    return detail::fused_residual_norm(stream, branch, weight, bias, eps, rms, dropout,
                                       autocast.value_or(stream.scalar_type()));
  }
  Tensor h = stream;
  if (branch.defined()) h = stream + (dropout > 0 ? at::dropout(branch, dropout, true) : branch);
  const auto size = weight.size(0);
  if (detail::has_few_rows(h) && weight.is_cpu()) return {detail::few_rows_norm(h, weight, bias, eps, rms), h};
  if (!rms) return {at::layer_norm(h, {size}, weight, bias, eps), h};
  auto output = at::rms_norm(h, {size}, weight, eps);
  if (bias.defined()) output = output + bias;
  return {output, h};
}

}  // namespace levin::kernels
