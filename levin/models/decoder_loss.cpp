#include "levin/models/decoder_loss.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "levin/core/error.h"
#include "levin/kernels/aligned.h"
#include "levin/kernels/cross_entropy/cross_entropy.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy.h"
#include "levin/kernels/embedding/waiting_gradient.h"
#include "levin/kernels/linear/matmul.h"
#include "levin/kernels/linear/product_dtype.h"
#include "levin/kernels/played_device.h"
#include "levin/models/decoder.h"
#include "levin/nn/experts/router_loss.h"

namespace levin::models {
namespace {

using torch::autograd::AutogradContext;

constexpr int64_t kRowsOfTheCpu = 1024;

at::ScalarType wide_dtype(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct LossParts {
  Tensor sum, grad_x, grad_weight;
};

/// Sum of the losses of rows x [N, D], and its gradients where they are asked for.
LossParts loss_in_chunks(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t rows, bool for_x,
                         bool for_weight) {
  const auto dtype = kernels::product_dtype(weight);
  const auto w = weight.to(dtype);
  LossParts parts{.sum = at::zeros({}, x.options().dtype(wide_dtype(x)))};
  if (for_x) parts.grad_x = at::empty_like(x);
  if (for_weight) parts.grad_weight = at::zeros_like(weight);
  for (int64_t begin = 0; begin < x.size(0); begin += rows) {
    const auto count = std::min(rows, x.size(0) - begin);
    const auto part = x.narrow(0, begin, count).to(dtype);
    const auto target = targets.narrow(0, begin, count).unsqueeze(1);
    const auto ignored = target.eq(kIgnoredToken);
    const auto index = target.masked_fill(ignored, 0);
    auto scores = at::log_softmax(at::mm(part, w.t()), 1, wide_dtype(x));
    parts.sum -= scores.gather(1, index).masked_fill_(ignored, 0).sum();
    if (!for_x && !for_weight) continue;
    // The gradient of the logits is softmax minus one at the target.
    scores.exp_().scatter_add_(1, index, at::full({1, 1}, -1, scores.options()).expand({count, 1}));
    const auto grad = scores.masked_fill_(ignored, 0).to(dtype);
    scores.reset();
    if (for_x) parts.grad_x.narrow(0, begin, count).copy_(at::mm(grad, w));
    if (!for_weight) continue;
    if (dtype == weight.scalar_type())
      parts.grad_weight.addmm_(grad.t(), part);
    else
      parts.grad_weight.add_(at::mm(grad.t(), part));
  }
  return parts;
}

// ---- on CUDA

bool has_fused_loss(const Tensor& x, const Tensor& weight) {
  const auto narrow = [](at::ScalarType dtype) { return dtype == at::kFloat || at::isReducedFloatingType(dtype); };
  return kernels::kernel_device(weight) == c10::kCUDA && narrow(x.scalar_type()) && narrow(weight.scalar_type()) &&
         weight.size(0) > 0;
}

/// Rows of logits in a chunk, whole tiles of the products. GPT-2 has 5632: their product with the weight is one tile
/// for each of 132 multiprocessors.
int64_t chunk_rows(int64_t rows, int64_t columns, int64_t element_size) {
  constexpr int64_t kBytes = 570'000'000, kLeast = 1024, kTile = 256;
  const auto most = std::max(kLeast, kBytes / (columns * element_size) / kTile * kTile);
  return std::clamp<int64_t>(rows, 1, most);
}

/// The weight in the dtype of the products, its rows filled up with zeros: the leading dimension of the logits decides
/// which kernels cuBLAS can take.
Tensor padded_weight(const Tensor& weight, at::ScalarType dtype) {
  constexpr int64_t kGood = 8, kPadded = 64;
  const auto rows = weight.size(0);
  if (weight.scalar_type() == dtype && rows % kGood == 0) return kernels::detail::aligned(weight);
  const auto padded = (rows + kPadded - 1) / kPadded * kPadded;
  auto result = at::empty({padded, weight.size(1)}, weight.options().dtype(dtype));
  result.narrow(0, 0, rows).copy_(weight);
  if (padded > rows) result.narrow(0, rows, padded - rows).zero_();
  return result;
}

/// out = a b, or out += a b. A product of 16-bit matrices is written in float32 without being rounded between.
void multiply_into(Tensor out, const Tensor& a, const Tensor& b, bool add = false) {
  if (out.is_meta()) return;  // takes no memory
  if (kernels::detail::runs_matmul(a) && (out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat))
    return kernels::detail::matmul_into(out, a, b, add);
  if (out.scalar_type() == a.scalar_type())
    add ? at::addmm_out(out, out, a, b) : at::mm_out(out, a, b);
  else if (out.scalar_type() == at::kFloat)
    add ? at::addmm_out(out, out, a, b, at::kFloat) : at::mm_out(out, a, b, at::kFloat);
  else
    add ? out.add_(at::mm(a, b)) : out.copy_(at::mm(a, b));
}

/// Some rows: in the dtype of the products, and where their losses and gradients belong.
struct LossChunk {
  Tensor x, targets, losses;
  Tensor logits;               // room for them and their gradient; undefined where nobody needs it
  Tensor grad_x, grad_weight;  // undefined where nobody asks for them
  bool first = true;           // the gradient of the weight is written, not added to
};

/// Logits in memory, then their losses and gradient in their place.
void loss_of_logits(const LossChunk& chunk, const Tensor& w, const kernels::CrossEntropyStep& step) {
  multiply_into(chunk.logits, chunk.x, w.t());
  const bool for_grads = chunk.grad_x.defined() || chunk.grad_weight.defined();
  (for_grads ? kernels::cross_entropy_step : kernels::cross_entropy_losses)(chunk.logits, chunk.targets, chunk.losses,
                                                                            step);
  if (chunk.grad_x.defined()) multiply_into(chunk.grad_x, chunk.logits, w);
  if (chunk.grad_weight.defined()) multiply_into(chunk.grad_weight, chunk.logits.t(), chunk.x, !chunk.first);
}

/// The same where the product computes them.
void loss_of_product(const LossChunk& chunk, const Tensor& w, const kernels::CrossEntropyStep& step) {
  const auto [factors, scaled] =
      kernels::linear_cross_entropy_step(chunk.x, w, chunk.targets, chunk.losses, chunk.logits, step);
  if (chunk.grad_x.defined()) {
    const auto wide = chunk.grad_x.scalar_type() == at::kFloat
                          ? chunk.grad_x
                          : at::empty(chunk.grad_x.sizes(), chunk.grad_x.options().dtype(at::kFloat));
    multiply_into(wide, chunk.logits, w);
    kernels::scale_rows(chunk.grad_x, wide, factors);
  }
  if (chunk.grad_weight.defined()) multiply_into(chunk.grad_weight, chunk.logits.t(), scaled, !chunk.first);
}

/// As loss_in_chunks, with the gradients times `scale`. That of the weight is [padded V, D] and may be float32.
LossParts fused_loss(const Tensor& x, const Tensor& weight, const Tensor& targets, const Tensor& scale, int64_t asked,
                     bool for_x, bool for_weight) {
  const auto dtype = kernels::product_dtype(weight);
  const auto w = padded_weight(weight, dtype);
  const auto all = x.size(0), columns = w.size(0);
  const auto rows = asked > 0 ? std::min(asked, std::max<int64_t>(all, 1))
                              : chunk_rows(all, columns, static_cast<int64_t>(w.element_size()));
  const bool once = rows >= all;
  // The gradient of the sum, which float16 gets, may pass its range.
  const auto sum_dtype = once && weight.scalar_type() == dtype && dtype != at::kHalf ? dtype : at::kFloat;
  LossParts parts;
  if (for_x) parts.grad_x = at::empty(x.sizes(), x.options());
  if (for_weight) parts.grad_weight = at::empty(w.sizes(), w.options().dtype(sum_dtype));
  if (for_weight && all == 0) parts.grad_weight.zero_();
  const auto losses = at::empty({all}, x.options().dtype(at::kFloat));
  const bool by_product = kernels::has_linear_cross_entropy_step(w);
  const kernels::CrossEntropyStep step{.classes = weight.size(0),
                                       .ignore_index = kIgnoredToken,
                                       .scale = scale.defined() ? std::optional<Tensor>(scale) : std::nullopt};
  {
    const auto room = by_product && !for_x && !for_weight ? Tensor() : at::empty({rows, columns}, w.options());
    for (int64_t begin = 0; begin < all; begin += rows) {
      const auto own = [&](const Tensor& whole) {
        return whole.defined() ? whole.narrow(0, begin, std::min(rows, all - begin)) : whole;
      };
      const LossChunk chunk{.x = own(x).to(dtype).contiguous(),
                            .targets = own(targets),
                            .losses = own(losses),
                            .logits = room.defined() ? room.narrow(0, 0, std::min(rows, all - begin)) : room,
                            .grad_x = own(parts.grad_x),
                            .grad_weight = parts.grad_weight,
                            .first = begin == 0};
      (by_product ? loss_of_product : loss_of_logits)(chunk, w, step);
    }
  }
  parts.sum = losses.sum();
  return parts;
}

// ---- the function

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& targets,
                        int64_t rows, bool for_x, bool for_weight) {
    const auto count = targets.ne(kIgnoredToken).sum();
    const bool fused = has_fused_loss(x, weight);
    LossParts parts;
    Tensor divisor = count.clamp_min(1);  // where nothing counts there is no gradient
    if (fused) {
      // The mean's factor goes into the gradient of the logits, where it is rounded with them; float16 has no numbers
      // that small.
      Tensor scale;
      if (kernels::product_dtype(weight) != at::kHalf) scale = divisor.to(at::kFloat).reciprocal_(), divisor.reset();
      parts = fused_loss(x, weight, targets.contiguous(), scale, rows, for_x, for_weight);
    } else {
      parts = loss_in_chunks(x, weight, targets, rows < 0 ? kRowsOfTheCpu : rows, for_x, for_weight);
    }
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["dtype"] = static_cast<int64_t>(weight.scalar_type());
    context->save_for_backward({parts.grad_x, parts.grad_weight, divisor});
    return parts.sum / count;
  }

  static torch::autograd::variable_list backward(AutogradContext* context, torch::autograd::variable_list grads) {
    const bool again = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const auto scale = saved[2].defined() ? grads[0] / saved[2] : grads[0];
    // The gradients are as large as what they belong to; nobody reads the saved ones again unless the graph is kept.
    const bool kept = torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](Tensor grad, at::ScalarType dtype) {
      if (!grad.defined()) return grad;
      if (grad.scalar_type() != dtype) {
        auto result = at::empty(grad.sizes(), grad.options().dtype(dtype));
        return at::mul_out(result, grad, scale.to(grad.scalar_type()));
      }
      const auto factor = scale.to(grad.scalar_type());
      if (kept) return grad * factor;
      kernels::scale_in_place(grad, factor);
      return grad;
    };
    auto of_weight = saved[1];
    if (of_weight.defined()) of_weight = of_weight.narrow(0, 0, context->saved_data["rows"].toInt());
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    torch::autograd::variable_list result{saved[0].defined() ? scaled(saved[0], saved[0].scalar_type()) : Tensor(),
                                          scaled(of_weight, dtype)};
    if (again)
      refuse_again(result);
    else
      kernels::remember_gradient(result[1], 1);  // the embedding of a tied weight adds to it
    result.resize(6);
    return result;
  }

 private:
  /// The gradients do not know what they were computed from: to differentiate them must fail.
  static void refuse_again(torch::autograd::variable_list& result) {
    const auto error = std::make_shared<torch::autograd::Error>(
        "[linear_cross_entropy] the gradient of a chunked loss cannot be differentiated; use loss_rows = 0",
        torch::autograd::edge_list(torch::autograd::get_current_node()->next_edges()));
    for (auto& each : result) {
      if (!each.defined()) continue;
      each = each.detach();
      torch::autograd::set_history(each, error);
    }
  }
};

}  // namespace

Tensor next_tokens(const Tensor& tokens) {
  LEVIN_CHECK(tokens.dim() == 2 && tokens.size(1) > 0, "[next_tokens] tokens must be [B, T], got ", tokens.sizes());
  const auto last = at::full({tokens.size(0), 1}, kIgnoredToken, tokens.options());
  return at::cat({tokens.slice(1, 1), last}, 1);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t rows) {
  LEVIN_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
                  targets.sizes() == x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)),
              "[linear_cross_entropy] needs x [..., D], weight [V, D] and targets [...], got ", x.sizes(), ", ",
              weight.sizes(), " and ", targets.sizes());
  LEVIN_CHECK(rows >= -1, "[linear_cross_entropy] rows ", rows, " must be -1 (chosen by size), 0 (all) or more");
  const auto flat = x.reshape({-1, x.size(-1)});
  const auto flat_targets = targets.reshape({-1}).to(at::kLong);
  if (rows == 0) {
    const auto logits = at::linear(flat, weight);
    return at::cross_entropy_loss(logits.to(wide_dtype(logits)), flat_targets, {}, at::Reduction::Mean, kIgnoredToken);
  }
  const bool grad = at::GradMode::is_enabled();
  return LinearCrossEntropy::apply(flat, weight, flat_targets, rows, grad && flat.requires_grad(),
                                   grad && weight.requires_grad());
}

// ---- of a decoder

Tensor DecoderImpl::token_loss(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  const auto states = own_states(ids, mask);
  if (!context) return head(states, targets);
  const auto own = context->take(targets, 1);
  return context->mean(head(states, own), own.ne(kIgnoredToken).sum());
}

Tensor DecoderImpl::loss_of(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  if (!is_training() || options.experts.count == 0 || (options.balance_loss == 0 && options.router_z_loss == 0))
    return token_loss(ids, targets, mask);
  const nn::RouterRecords routers;
  auto loss = token_loss(ids, targets, mask);
  int64_t layers = 0;
  for (int64_t i = 0; i < options.num_layers; ++i) layers += options.has_experts(i) ? 1 : 0;
  LEVIN_CHECK(static_cast<int64_t>(routers.records().size()) == layers, "[decoder] balance_loss and router_z_loss are ",
              "of all ", layers, " layers with experts, and ", routers.records().size(),
              " ran here; where layers are on several ranks (pipeline) set both to 0");
  if (layers == 0) return loss;
  const auto routed = context && mask.defined() ? context->take(mask, 1) : mask;
  if (options.balance_loss > 0) loss = loss + options.balance_loss * nn::balance_loss(routers.records(), routed);
  if (options.router_z_loss > 0) loss = loss + options.router_z_loss * nn::router_z_loss(routers.records(), routed);
  return loss;
}

}  // namespace levin::models
