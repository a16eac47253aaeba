#include "levin/nn/experts/split.h"

#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/experts/experts.h"

namespace levin {
namespace {

/// All layers with experts, by name.
std::vector<std::pair<std::string, nn::ExpertsImpl*>> layers_of(torch::nn::Module& module) {
  std::vector<std::pair<std::string, nn::ExpertsImpl*>> layers;
  if (auto* layer = dynamic_cast<nn::ExpertsImpl*>(&module)) layers.emplace_back("", layer);
  // Without the module itself, which may be on the stack.
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    if (auto* layer = dynamic_cast<nn::ExpertsImpl*>(item.value().get())) layers.emplace_back(item.key(), layer);
  return layers;
}

}  // namespace

const TensorSplit::Parameter* ExpertSplit::find(const at::Tensor& parameter) const {
  for (const auto& known : parameters)
    if (known.tensor.is_same(parameter)) return &known;
  return nullptr;
}

std::shared_ptr<ExpertSplit> split_experts(torch::nn::Module& module, const ExpertParallelOptions& options,
                                           const std::shared_ptr<Collective>& ranks, std::shared_ptr<Collective> batch,
                                           SplitValues values, const std::function<void(const at::Tensor&)>& prepare) {
  const auto size = ranks->size();
  LEVIN_CHECK(options.size == 0 || options.size == size, "[expert_parallel] size ", options.size, " on a group of ",
              size, " ranks");
  const auto layers = layers_of(module);
  LEVIN_CHECK(
      !layers.empty(),
      "[expert_parallel] the model has no experts (levin::nn::Experts); leave ep out, or use \"ddp\" or \"fsdp\"");
  for (const auto& [name, layer] : layers) {
    LEVIN_CHECK(!layer->ranks, "[expert_parallel] \"", name, "\" is split over ranks already");
    LEVIN_CHECK(layer->options.count >= size, "[expert_parallel] \"", name, "\" has ", layer->options.count,
                " experts, which ", size, " ranks cannot share: each needs one");
  }
  auto split = std::make_shared<ExpertSplit>();
  split->ranks = ranks;
  const at::NoGradGuard no_grad;
  for (const auto& [name, layer] : layers) {
    layer->batch_ranks = batch ? batch : ranks;
    if (size == 1) continue;
    layer->ranks = ranks;
    const auto own = Share::of(layer->options.count, size, ranks->rank());
    for (const auto& item : layer->named_parameters(/*recurse=*/false)) {
      if (item.key() == "router") continue;
      auto parameter = item.value();
      if (prepare) prepare(parameter);
      const TensorSlice slice{0, {own}, parameter.sizes().vec()};
      split->parameters.push_back({name + "." + item.key(), parameter, slice});
      if (values == SplitValues::kRead) {
        parameter.set_data(at::empty(slice.sizes(), parameter.options().requires_grad(false)));
        continue;
      }
      if (is_deferred(parameter)) materialize(std::span(&parameter, 1));
      parameter.set_data(slice.of(parameter.detach()));
    }
  }
  return split;
}

}  // namespace levin
