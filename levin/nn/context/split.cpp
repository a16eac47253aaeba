#include "levin/nn/context/split.h"

#include <vector>

#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/nn/module_access.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

struct FoundParts {
  std::vector<ContextParallelPart*> parts;
  ContextParallelPart* model = nullptr;
};

void find_parts(torch::nn::Module& module, const std::string& name, FoundParts& found) {
  if (auto* part = dynamic_cast<ContextParallelPart*>(&module)) {
    const auto why = part->why_not_spread();
    LEVIN_CHECK(why.empty(), "[context_parallel] ", name.empty() ? class_name(module) : "\"" + name + "\"", " ", why);
    if (part->takes_sequence()) {
      LEVIN_CHECK(!found.model, "[context_parallel] \"", name, "\" is a second model in one module; split each alone");
      found.model = part;
    }
    found.parts.push_back(part);
  }
  for (auto& child : detail::ModuleAccess::children(module))
    find_parts(*child.value(), name.empty() ? child.key() : name + "." + child.key(), found);
}

}  // namespace

SharedContext split_context(torch::nn::Module& module, const ContextParallelOptions& options,
                            const std::shared_ptr<Collective>& ranks) {
  auto resolved = options;
  if (resolved.size == 0) resolved.size = ranks->size();
  LEVIN_CHECK(resolved.size == ranks->size(), "[context_parallel] size ", resolved.size, " on a group of ",
              ranks->size(), " ranks");
  FoundParts found;
  find_parts(module, "", found);
  LEVIN_CHECK(found.model, "[context_parallel] no module of ", class_name(module),
              " says how its sequence is spread; use a model of levin/models, or derive from ContextParallelPart");
  const auto share =
      std::make_shared<const ContextShare>(ranks, resolved, resolved.balance && !found.model->sees_both_ways());
  for (auto* part : found.parts) part->take_context(share);
  return share;
}

}  // namespace levin
