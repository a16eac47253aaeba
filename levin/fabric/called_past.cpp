#include "levin/fabric/called_past.h"

#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/nn/module_access.h"

namespace levin::detail {
namespace {

using torch::autograd::Node;

struct End {
  const ModuleCall* call;
  Tensor param;
};
using Ends = std::unordered_map<const Node*, End>;

/// Where graphs end at parameters of a module and of those below it.
void add_ends(Ends& ends, const ModuleCall& call, const torch::nn::Module& module) {
  for (const auto& item : ModuleAccess::parameters(module))
    if (item.value().defined() && item.value().requires_grad())
      if (const auto node = torch::autograd::impl::try_get_grad_accumulator(item.value()))
        ends.emplace(node.get(), End{&call, item.value()});
  for (const auto& child : ModuleAccess::children(module)) add_ends(ends, call, *child.value());
}

std::string type_of(const torch::nn::Module& module) {
  const auto name = module.name();
  const auto scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

std::string name_of(const Tensor& param, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    if (item.value().is_same(param)) return item.key();
  return "a parameter";
}

/// Modules may share parameters: a call of one of them is enough.
bool has(const ModuleCalls& calls, const Tensor& param) {
  for (const auto& call : calls)
    for (const auto& mine : call->module->parameters())
      if (mine.is_same(param)) return true;
  return false;
}

}  // namespace

void check_called(const Tensor& loss, const ModuleCalls& idle, const ModuleCalls& armed) {
  Ends ends;
  for (const auto& call : idle) add_ends(ends, *call, *call->module);
  if (ends.empty() || !loss.grad_fn()) return;
  std::unordered_set<const Node*> seen{loss.grad_fn().get()};
  std::vector<const Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) {
      const auto* next = edge.function.get();
      if (!next || !seen.insert(next).second) continue;
      const auto found = ends.find(next);
      if (found == ends.end()) {
        open.push_back(next);
        continue;
      }
      const auto& [call, param] = found->second;
      if (has(armed, param)) continue;
      throw Error(
          concat("[fabric.backward] the loss uses \"", name_of(param, *call->module), "\" of ", type_of(*call->module),
                 ", and no call of the module that setup returned: call that one, net(x) or net.call(&Net::method, "
                 "x), not net->forward(x) or the module that setup was given"));
    }
  }
}

}  // namespace levin::detail
