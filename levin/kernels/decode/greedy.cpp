#include "levin/kernels/decode/greedy.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>

#include "levin/core/error.h"
#include "levin/kernels/decode/greedy_detail.h"
#include "levin/kernels/operators.h"

namespace levin::kernels {
namespace {

std::tuple<Tensor, Tensor> greedy_on_meta(const Tensor& logits, const Tensor&) {
  const auto rows = logits.size(0);
  return {at::empty({rows}, logits.options().dtype(at::kLong)),
          at::empty({rows, 3}, logits.options().dtype(at::kDouble))};
}

struct GreedyOps : detail::Operators {
  detail::Operator<decltype(greedy_on_meta)> tokens =
      add("greedy_tokens(Tensor logits, Tensor scores) -> (Tensor, Tensor)", greedy_on_meta, detail::greedy_by_aten);

  GreedyOps() { detail::register_greedy_cuda(cuda); }
};

}  // namespace

namespace detail {

std::tuple<Tensor, Tensor> greedy_by_aten(const Tensor& logits, const Tensor& scores) {
  const auto ids = at::argmax(scores, 1);
  const auto place = ids.unsqueeze(1);
  const auto logs = at::log_softmax(logits, 1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {ids, at::cat({place.to(at::kDouble), logs.gather(1, place).to(at::kDouble),
                        scores.gather(1, place).to(at::kDouble)},
                       1)};
}

}  // namespace detail

GreedyTokens greedy_tokens(const Tensor& logits, const Tensor& scores) {
  LEVIN_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.is_floating_point() &&
                  scores.sizes() == logits.sizes() && scores.scalar_type() == logits.scalar_type() &&
                  scores.device() == logits.device(),
              "[greedy_tokens] needs logits and scores [rows, V] of one dtype and device, got ", logits.scalar_type(),
              " ", logits.sizes(), " and ", scores.scalar_type(), " ", scores.sizes());
  auto [ids, found] = detail::operators<GreedyOps>().tokens.call(logits, scores);
  return {std::move(ids), std::move(found)};
}

}  // namespace levin::kernels
