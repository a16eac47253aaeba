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

void advance_on_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}

struct GreedyOps : detail::Operators {
  detail::Operator<decltype(greedy_on_meta)> tokens =
      add("greedy_tokens(Tensor logits, Tensor scores) -> (Tensor, Tensor)", greedy_on_meta, detail::greedy_by_aten);
  detail::Operator<decltype(advance_on_meta)> advance = add(
      "greedy_advance(Tensor logits, Tensor(a!) ids, Tensor(b!) positions, Tensor(c!) found, Tensor(d!) turn) -> ()",
      advance_on_meta, detail::advance_by_aten);

  GreedyOps() { detail::register_greedy_cuda(cuda); }
};

}  // namespace

namespace detail {

std::tuple<Tensor, Tensor> greedy_by_aten(const Tensor& logits, const Tensor& scores) {
  const auto ids = at::argmax(scores, 1);
  const auto logs = at::log_softmax(logits, 1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {ids, found_tokens(ids, logs, scores)};
}

void advance_by_aten(const Tensor& logits, const Tensor& ids, const Tensor& positions, const Tensor& found,
                     const Tensor& turn) {
  const auto [best, told] = greedy_by_aten(logits, logits);
  ids.copy_(best);
  positions.add_(1);
  found.index_copy_(0, turn, told.unsqueeze(0));
  turn.add_(1).remainder_(found.size(0));
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

void greedy_advance(const Tensor& logits, const GreedyChain& chain) {
  const auto& [ids, positions, found, turn] = chain;
  LEVIN_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.is_floating_point(),
              "[greedy_advance] needs logits [rows, V], got ", logits.scalar_type(), " ", logits.sizes());
  const auto rows = logits.size(0);
  const auto fits = [&](const Tensor& tensor, at::ScalarType dtype, at::IntArrayRef sizes) {
    return tensor.scalar_type() == dtype && tensor.sizes() == sizes && tensor.is_contiguous() &&
           tensor.device() == logits.device();
  };
  LEVIN_CHECK(fits(ids, at::kLong, {rows}) && fits(positions, at::kLong, {rows}) && fits(turn, at::kLong, {1}),
              "[greedy_advance] needs contiguous int64 ids and positions [", rows, "] and a turn [1] on ",
              logits.device(), ", got ", ids.sizes(), ", ", positions.sizes(), " and ", turn.sizes());
  LEVIN_CHECK(found.dim() == 3 && found.size(0) > 0 && fits(found, at::kDouble, {found.size(0), rows, 3}),
              "[greedy_advance] needs contiguous float64 places [turns, ", rows, ", 3] on ", logits.device(), ", got ",
              found.scalar_type(), " ", found.sizes());
  detail::operators<GreedyOps>().advance.call(logits, ids, positions, found, turn);
}

Tensor found_tokens(const Tensor& ids, const Tensor& logs, const Tensor& scores) {
  const auto place = ids.unsqueeze(1);
  return at::cat(
      {place.to(at::kDouble), logs.gather(1, place).to(at::kDouble), scores.gather(1, place).to(at::kDouble)}, 1);
}

}  // namespace levin::kernels
