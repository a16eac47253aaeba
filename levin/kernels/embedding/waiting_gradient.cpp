#include "levin/kernels/embedding/waiting_gradient.h"

#include <optional>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace levin::kernels {
namespace {

struct WaitingGradient {
  /// Where it goes: an input of a node, which waits for all gradients of one backward.
  const torch::autograd::Node* node = nullptr;
  uint32_t input = 0;
  int backward = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> grad;
  int64_t version = 0;
};

thread_local std::optional<WaitingGradient> waiting_gradient;

/// Autograd orders streams by the nodes that give gradients, and a node that adds in place gives none.
bool is_on_current_stream(torch::autograd::Node& node, const Tensor& grad) {
  if (!grad.is_cuda()) return true;
  const auto stream = node.stream();
  return stream && *stream == c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(grad.device());
}

const torch::autograd::Edge& edge_of(uint32_t input) {
  return torch::autograd::get_current_node()->next_edge(input);
}

}  // namespace

void remember_gradient(const Tensor& grad, uint32_t input) {
  waiting_gradient.reset();
  if (!grad.defined() || grad.is_inference()) return;
  const auto& edge = edge_of(input);
  if (!edge.is_valid()) return;
  waiting_gradient =
      WaitingGradient{edge.function.get(), edge.input_nr, torch::autograd::get_current_graph_task_id(),
                      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(grad.getIntrusivePtr()),
                      static_cast<int64_t>(grad._version())};
}

Tensor take_gradient(uint32_t input) {
  if (!waiting_gradient) return {};
  const auto& edge = edge_of(input);
  if (!edge.is_valid() || waiting_gradient->node != edge.function.get() || waiting_gradient->input != edge.input_nr ||
      waiting_gradient->backward != torch::autograd::get_current_graph_task_id())
    return {};
  const auto known = *std::exchange(waiting_gradient, std::nullopt);
  auto alive = known.grad.lock();
  if (!alive || alive.use_count() != 2) return {};  // this one, and the one of autograd
  Tensor grad(std::move(alive));
  const bool same = known.version == static_cast<int64_t>(grad._version());
  return same && is_on_current_stream(*edge.function, grad) ? grad : Tensor();
}

}  // namespace levin::kernels
