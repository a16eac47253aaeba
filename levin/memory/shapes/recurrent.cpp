#include <utility>

#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

constexpr int64_t kFloat = 4, kPage = 4096;

int64_t rounded_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
/// Rows of matrices in oneDNN's recurrent layers: whole lines of the cache, and no multiple of 256.
int64_t row_of(int64_t n) {
  const auto whole = rounded_up(n, 16);
  return whole % 256 == 0 ? whole + 16 : whole;
}

/// A layer of oneDNN's LSTM on [T, N, I], with H hidden numbers.
struct Layer {
  int64_t steps, rows, inputs, hidden;

  explicit Layer(const ShapeCall& call)
      : steps(call.tensor("input").size(0)),
        rows(call.tensor("input").size(1)),
        inputs(call.tensor("input").size(2)),
        hidden(call.integer("hidden_size")) {}

  int64_t gates() const { return rounded_up(steps * rows * row_of(4 * hidden) * kFloat, kPage); }
  /// What forward leaves for backward: gates, results, and two copies of the states of each step, of three kinds that
  /// are as wide as the input and two that are not.
  int64_t workspace() const {
    const auto states = [&](int64_t width) {
      return rounded_up(2 * (steps + 1) * rows * row_of(width) * kFloat, kPage);
    };
    return gates() + rounded_up(steps * rows * hidden * kFloat, kPage) + 3 * states(std::max(inputs, hidden)) +
           2 * states(hidden);
  }
  /// While a layer runs: weights in its order, and its scratch memory.
  void take_scratch(ShapeCall& call) const {
    for (const auto width : {inputs, hidden}) call.scratch({width * row_of(4 * hidden)}, at::kFloat);
    call.scratch({4 * hidden}, at::kFloat);
    call.scratch({gates() + 3 * kPage}, at::kByte);
  }
};

void lstm_layer(ShapeCall& call) {
  const Layer layer(call);
  const auto& x = call.tensor("input");
  layer.take_scratch(call);
  call.result({layer.steps, layer.rows, layer.hidden}, x);
  for (int i = 0; i < 2; ++i) call.result({layer.rows, layer.hidden}, x);
  call.flag("train") ? call.result({layer.workspace()}, at::kByte) : call.result({0}, at::kByte);
}

void lstm_layer_backward(ShapeCall& call) {
  const Layer layer(call);
  const auto& x = call.tensor("input");
  layer.take_scratch(call);
  call.scratch({layer.steps, layer.rows, layer.hidden}, x.scalar_type());
  for (int i = 0; i < 2; ++i) call.scratch({layer.rows, layer.hidden}, x.scalar_type());
  call.result(x.sizes().vec(), x);
  for (const auto* name : {"weight1", "weight2"}) call.result(call.tensor(name).sizes().vec(), x);
  for (int i = 0; i < 2; ++i) call.result({4 * layer.hidden}, x);
  for (int i = 0; i < 2; ++i) call.result({layer.rows, layer.hidden}, x);
}

}  // namespace

std::span<const ShapeRule> recurrent_shapes() {
  static const std::vector<ShapeRule> rules{
      {"mkldnn_rnn_layer", lstm_layer},
      {"mkldnn_rnn_layer_backward", lstm_layer_backward},
  };
  return rules;
}

}  // namespace levin::detail
