#include "levin/nn/functional.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_nd.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

int64_t reduction_of(std::string_view operation, std::string_view word) {
  if (word == "mean") return at::Reduction::Mean;
  if (word == "sum") return at::Reduction::Sum;
  if (word == "none") return at::Reduction::None;
  const std::vector<std::string> known{"mean", "sum", "none"};
  fail_unknown(operation, "reduction", word, known);
}

/// torch broadcasts here, which turns [N] against [N, 1] into a silent [N, N].
void check_same_shape(std::string_view operation, const Tensor& prediction, const Tensor& target) {
  LEVIN_CHECK(prediction.sizes() == target.sizes(), "[", operation, "] the prediction has the shape ",
              prediction.sizes(), ", the target ", target.sizes(), "; they must be equal (reshape or expand one)");
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  LEVIN_CHECK(logits.dim() >= 1 && logits.is_floating_point(),
              "[cross_entropy] logits must be a floating tensor [N, C, ...], got ", logits.scalar_type(), " ",
              logits.sizes());
  LEVIN_CHECK(target.is_floating_point() ? target.sizes() == logits.sizes() : target.dim() == logits.dim() - 1,
              "[cross_entropy] logits ", logits.sizes(), " need class indices of ", logits.dim() - 1,
              " dimension(s) or class probabilities of the same shape, got ", target.scalar_type(), " ",
              target.sizes());
  const auto weight = options.weight.defined() ? std::optional<Tensor>(options.weight) : std::nullopt;
  return at::cross_entropy_loss(logits, target, weight, reduction_of("cross_entropy", options.reduction),
                                options.ignore_index, options.label_smoothing);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target, std::string_view reduction) {
  check_same_shape("binary_cross_entropy_with_logits", logits, target);
  return at::binary_cross_entropy_with_logits(logits, target.to(logits.scalar_type()), {}, {},
                                              reduction_of("binary_cross_entropy_with_logits", reduction));
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::string_view reduction) {
  return at::nll_loss_nd(log_probs, target, {}, reduction_of("nll_loss", reduction));
}

Tensor mse_loss(const Tensor& prediction, const Tensor& target, std::string_view reduction) {
  check_same_shape("mse_loss", prediction, target);
  return at::mse_loss(prediction, target, reduction_of("mse_loss", reduction));
}

Tensor l1_loss(const Tensor& prediction, const Tensor& target, std::string_view reduction) {
  check_same_shape("l1_loss", prediction, target);
  return at::l1_loss(prediction, target, reduction_of("l1_loss", reduction));
}

Tensor accuracy(const Tensor& logits, const Tensor& target, int64_t top_k) {
  LEVIN_CHECK(logits.dim() == 2 && target.dim() == 1 && logits.size(0) == target.size(0),
              "[accuracy] needs logits [N, C] and targets [N], got ", logits.sizes(), " and ", target.sizes());
  LEVIN_CHECK(top_k >= 1 && top_k <= logits.size(1), "[accuracy] top_k ", top_k, " is not in 1 to ", logits.size(1));
  const auto scores = logits.detach();
  if (top_k == 1) return scores.argmax(1).eq(target).to(at::kFloat).mean();
  const auto best = std::get<1>(scores.topk(top_k, 1));
  return best.eq(target.unsqueeze(1)).any(1).to(at::kFloat).mean();
}

}  // namespace levin
