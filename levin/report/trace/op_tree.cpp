#include "levin/report/trace/op_tree.h"

#include "levin/report/views/tensor_cores.h"

namespace levin::report {
namespace {

bool is_tree_kind(HostKind kind) {
  return kind != HostKind::kAnnotation && kind != HostKind::kModule;
}

bool is_row(const TraceEvents& trace, const HostSpan& span) {
  if (span.kind == HostKind::kCollective) return true;
  if (span.kind != HostKind::kOperator) return false;
  const auto& name = trace.name(span.name);
  return !name.starts_with("Optimizer.") && name != "DataParallel.forward" && name != "DistributedDataParallel.forward";
}

void find_parents(const TraceEvents& trace, OpTree& tree) {
  std::vector<uint32_t> stack;
  uint32_t thread = kNone;
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    const auto& span = trace.host[i];
    if (!is_tree_kind(span.kind)) continue;
    if (span.thread != thread) stack.clear();
    thread = span.thread;
    while (!stack.empty() && span.start >= trace.host[stack.back()].end()) stack.pop_back();
    auto& node = tree.nodes[i];
    if (!stack.empty() && span.end() > trace.host[stack.back()].end()) {
      ++tree.dropped;
      continue;
    }
    node.is_in_tree = true;
    node.parent = stack.empty() ? kNone : stack.back();
    node.is_listed = is_row(trace, span);
    stack.push_back(i);
  }
}

void fold(const TraceEvents& trace, OpTree& tree) {
  std::vector<uint32_t> children(tree.nodes.size());
  for (const auto& node : tree.nodes) {
    if (node.is_in_tree && node.parent != kNone) ++children[node.parent];
  }
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    auto& node = tree.nodes[i];
    if (!node.is_in_tree || node.parent == kNone || children[node.parent] != 1) continue;
    const auto& span = trace.host[i];
    const auto& parent = trace.host[node.parent];
    const bool both = span.kind == HostKind::kOperator && parent.kind == HostKind::kOperator;
    if (!both || span.name != parent.name) continue;
    node.folded_into = tree.standing_for(node.parent);
    node.is_listed = false;
  }
  for (auto& node : tree.nodes) {
    if (node.is_in_tree && node.parent != kNone) node.parent = tree.standing_for(node.parent);
  }
}

void add_calls(const TraceEvents& trace, OpTree& tree) {
  for (const auto& call : trace.calls) {
    if (call.owner == kNone || !tree.nodes[call.owner].is_in_tree) continue;
    tree.nodes[tree.standing_for(call.owner)].host_self -= call.duration;
  }
  const auto tensor_cores = tensor_core_names(trace, false);
  for (const auto& event : trace.device) {
    if (event.launch == kNone) continue;
    const auto owner = trace.calls[event.launch].owner;
    if (owner == kNone || !tree.nodes[owner].is_in_tree) continue;
    auto& node = tree.nodes[tree.standing_for(owner)];
    node.device_self += event.duration;
    if (tensor_cores[event.name]) node.tensor_core_self += event.duration;
  }
}

}  // namespace

std::vector<char> tensor_core_names(const TraceEvents& trace, bool tb_compat) {
  std::vector<char> uses(trace.names.size(), 2);  // 2: not asked yet
  for (const auto& event : trace.device) {
    auto& use = uses[event.name];
    if (use == 2) use = event.kind == DeviceKind::kKernel && uses_tensor_cores(trace.name(event.name), tb_compat);
  }
  for (auto& use : uses) use = use == 1;
  return uses;
}

OpTree build_op_tree(const TraceEvents& trace) {
  OpTree tree;
  tree.nodes.resize(trace.host.size());
  find_parents(trace, tree);
  fold(trace, tree);
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    const auto& node = tree.nodes[i];
    if (!node.is_in_tree || node.folded_into != kNone) continue;
    tree.nodes[i].host_self += trace.host[i].duration;
    if (node.parent != kNone) tree.nodes[node.parent].host_self -= trace.host[i].duration;
  }
  add_calls(trace, tree);
  // Children stand after their parents.
  std::vector<char> has_eligible_child(tree.nodes.size());
  for (size_t i = tree.nodes.size(); i-- > 0;) {
    auto& node = tree.nodes[i];
    if (!node.is_in_tree || node.folded_into != kNone) continue;
    node.device_total += node.device_self;
    node.tensor_core_total += node.tensor_core_self;
    const auto& span = trace.host[i];
    const bool is_operator = span.kind == HostKind::kOperator;
    const bool is_named = (is_operator && could_use_tensor_cores(trace.name(span.name))) || node.tensor_core_self > 0;
    node.could_use_tensor_cores = is_named || (is_operator && has_eligible_child[i]);
    node.is_lowest_eligible = is_named && !has_eligible_child[i];
    if (node.parent == kNone) continue;
    auto& parent = tree.nodes[node.parent];
    parent.device_total += node.device_total;
    parent.tensor_core_total += node.tensor_core_total;
    has_eligible_child[node.parent] |= node.could_use_tensor_cores || has_eligible_child[i];
  }
  return tree;
}

}  // namespace levin::report
