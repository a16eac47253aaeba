#include "levin/strategies/pipeline/backward.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;
using NodeRef = std::shared_ptr<Node>;

Edge edge_of(const Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor);
}

/// Adds to the gradients of the leaves at `outputs`; without any, to those of all leaves.
void execute(const edge_list& roots, const variable_list& grads, bool keep_graph, const edge_list& outputs) {
  Engine::get_default_engine().execute(roots, grads, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true,
                                       outputs);
}

/// Every node that backward can reach, with the children of each in `next_edges`; inner nodes before their parents.
std::vector<NodeRef> reachable(const std::vector<Tensor>& roots) {
  std::vector<NodeRef> nodes;
  std::unordered_set<const Node*> seen;
  std::vector<NodeRef> stack;
  for (const auto& root : roots)
    if (auto node = edge_of(root).function; node && seen.insert(node.get()).second) stack.push_back(std::move(node));
  while (!stack.empty()) {
    auto node = std::move(stack.back());
    stack.pop_back();
    for (const auto& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second) stack.push_back(edge.function);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

/// Nodes through which the gradient of the inputs goes.
std::unordered_set<const Node*> ways_to(const std::vector<NodeRef>& nodes, const std::vector<Tensor>& inputs) {
  std::unordered_map<const Node*, std::vector<const Node*>> parents;
  for (const auto& node : nodes)
    for (const auto& edge : node->next_edges())
      if (edge.function) parents[edge.function.get()].push_back(node.get());
  std::unordered_set<const Node*> ways;
  std::vector<const Node*> stack;
  for (const auto& input : inputs)
    if (const auto* node = edge_of(input).function.get(); ways.insert(node).second) stack.push_back(node);
  while (!stack.empty()) {
    const auto* node = stack.back();
    stack.pop_back();
    for (const auto* parent : parents[node])
      if (ways.insert(parent).second) stack.push_back(parent);
  }
  return ways;
}

}  // namespace

struct StageBackward::Split {
  /// A node of the way of the inputs that uses weights: the gradients that arrived at it, and where those of its
  /// weights go.
  struct Meeting {
    NodeRef node;
    std::shared_ptr<variable_list> grads = std::make_shared<variable_list>();
    edge_list weights;
    /// Of its owner, those of the weights.
    std::vector<int> parts = {};
  };
  std::vector<Meeting> meetings;
  std::map<int, const Meeting*> sort_by_parts(const ModuleSync& owner);

  /// Roots that do not depend on the inputs.
  edge_list rest;
  variable_list rest_grads;
};

namespace {

class KeepGrads final : public torch::autograd::FunctionPreHook {
 public:
  explicit KeepGrads(std::shared_ptr<variable_list> to) : to_(std::move(to)) {}
  variable_list operator()(const variable_list& grads) override {
    if (to_) *to_ = grads;
    to_ = nullptr;  // the second part comes by again
    return grads;
  }

 private:
  std::shared_ptr<variable_list> to_;
};

/// The parameters that are reached from an edge that leaves the way of the inputs.
void leaves_behind(const Node& node, std::vector<NodeRef>& leaves, std::unordered_set<const Node*>& seen) {
  for (const auto& edge : node.next_edges()) {
    if (!edge.function || !seen.insert(edge.function.get()).second) continue;
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()))
      leaves.push_back(edge.function);
    else
      leaves_behind(*edge.function, leaves, seen);
  }
}

std::vector<NodeRef> weights_at(const Node& node, const std::unordered_set<const Node*>& ways) {
  std::vector<NodeRef> leaves;
  std::unordered_set<const Node*> seen;
  for (const auto& edge : node.next_edges()) {
    if (!edge.function || ways.contains(edge.function.get()) || !seen.insert(edge.function.get()).second) continue;
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()))
      leaves.push_back(edge.function);
    else
      leaves_behind(*edge.function, leaves, seen);
  }
  return leaves;
}

}  // namespace

StageBackward::StageBackward(std::vector<Tensor> roots, std::vector<Tensor> grads, std::vector<Tensor> inputs)
    : inputs_(std::move(inputs)) {
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].requires_grad()) continue;  // all that it depends on is frozen
    grads_.push_back(grads[i].defined() ? grads[i] : at::ones_like(roots[i]));
    roots_.push_back(std::move(roots[i]));
  }
}

StageBackward::~StageBackward() = default;

std::vector<Tensor> StageBackward::input_grads() {
  std::vector<Tensor> found;
  for (auto& input : inputs_) {
    found.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
    input.mutable_grad().reset();
  }
  return found;
}

std::vector<Tensor> StageBackward::all() {
  edge_list edges;
  for (const auto& root : roots_) edges.push_back(edge_of(root));
  if (!edges.empty()) execute(edges, grads_, /*keep_graph=*/false, {});
  roots_.clear();
  grads_.clear();
  return input_grads();
}

std::vector<Tensor> StageBackward::of_inputs() {
  // Without inputs (the first stage) everything is the weights' part.
  if (inputs_.empty() || roots_.empty()) return input_grads();
  const auto nodes = reachable(roots_);
  const auto ways = ways_to(nodes, inputs_);
  split_ = std::make_unique<Split>();
  std::unordered_map<const Node*, size_t> uses;
  std::vector<std::pair<NodeRef, std::vector<NodeRef>>> met;
  for (const auto& node : nodes) {
    if (!ways.contains(node.get())) continue;
    auto weights = weights_at(*node, ways);
    for (const auto& weight : weights) ++uses[weight.get()];
    if (!weights.empty()) met.emplace_back(node, std::move(weights));
  }
  edge_list outputs;
  for (const auto& input : inputs_) outputs.push_back(edge_of(input));
  std::unordered_set<const Node*> added;
  for (auto& [node, weights] : met) {
    Split::Meeting meeting{.node = node};
    for (const auto& weight : weights) {
      if (uses[weight.get()] == 1)
        meeting.weights.emplace_back(weight, 0);
      else if (added.insert(weight.get()).second)
        outputs.emplace_back(weight, 0);
    }
    if (meeting.weights.empty()) continue;
    // Before all hooks of tensors: the second part runs them again.
    auto& hooks = node->tensor_pre_hooks();
    hooks.insert(hooks.begin(), std::make_unique<KeepGrads>(meeting.grads));
    split_->meetings.push_back(std::move(meeting));
  }
  edge_list edges;
  variable_list grads;
  for (size_t i = 0; i < roots_.size(); ++i) {
    const bool on_way = ways.contains(edge_of(roots_[i]).function.get());
    (on_way ? edges : split_->rest).push_back(edge_of(roots_[i]));
    (on_way ? grads : split_->rest_grads).push_back(grads_[i]);
  }
  if (!edges.empty()) execute(edges, grads, /*keep_graph=*/true, outputs);
  return input_grads();
}

/// Meetings of one part follow each other, parts in the order of backward. Returns the last meeting of each part.
std::map<int, const StageBackward::Split::Meeting*> StageBackward::Split::sort_by_parts(const ModuleSync& owner) {
  for (auto& meeting : meetings)
    for (const auto& edge : meeting.weights) {
      const auto& leaf = static_cast<const torch::autograd::AccumulateGrad&>(*edge.function);
      const int part = owner.weight_part(leaf.variable);
      if (part >= 0 && std::ranges::find(meeting.parts, part) == meeting.parts.end()) meeting.parts.push_back(part);
    }
  std::ranges::stable_sort(meetings, [](const Meeting& a, const Meeting& b) { return a.parts > b.parts; });
  std::map<int, const Meeting*> last;
  for (const auto& meeting : meetings)
    for (const int part : meeting.parts) last[part] = &meeting;
  return last;
}

void StageBackward::of_weights(ModuleSync* owner) {
  if (owner) owner->enter_weights(-1);
  if (!split_) {
    all();
    return;
  }
  std::map<int, const Split::Meeting*> last;
  if (owner) last = split_->sort_by_parts(*owner);
  std::unordered_set<int> entered;
  for (auto& meeting : split_->meetings) {
    for (const int part : meeting.parts)
      if (entered.insert(part).second) owner->enter_weights(part);
    edge_list edges;
    variable_list grads;
    for (uint32_t i = 0; i < meeting.grads->size(); ++i)
      if ((*meeting.grads)[i].defined()) {
        edges.emplace_back(meeting.node, i);
        grads.push_back((*meeting.grads)[i]);
      }
    if (!edges.empty()) execute(edges, grads, /*keep_graph=*/true, meeting.weights);
    for (const int part : meeting.parts)
      if (last.at(part) == &meeting) owner->leave_weights(part);
  }
  if (!split_->rest.empty()) execute(split_->rest, split_->rest_grads, /*keep_graph=*/false, {});
  split_.reset();
  roots_.clear();
  grads_.clear();
}

}  // namespace levin::detail
