#include "levin/trainer/callbacks/finetuning.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/nn/tie.h"
#include "levin/trainer/callbacks/batch_norm.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {
namespace {

// A module and all below it; unlike modules(), also for one on the stack.
std::vector<torch::nn::Module*> all_modules(torch::nn::Module& module) {
  std::vector<torch::nn::Module*> all{&module};
  for (const auto& below : module.modules(/*include_self=*/false)) all.push_back(below.get());
  return all;
}

void set_requires_grad(torch::nn::Module& module, bool needed) {
  for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.set_requires_grad(needed);
}

// One collective for all gradients of a dtype.
void average_gradients(Fabric& fabric, const std::vector<Tensor>& parameters) {
  at::NoGradGuard no_grad;
  std::vector<Tensor> rest;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) rest.push_back(parameter.grad());
  while (!rest.empty()) {
    const auto dtype = rest[0].scalar_type();
    const auto other = std::ranges::stable_partition(rest, [&](const Tensor& t) { return t.scalar_type() == dtype; });
    const std::vector<Tensor> these(rest.begin(), other.begin());
    std::vector<Tensor> flat;
    for (const auto& gradient : these) flat.push_back(gradient.flatten());
    auto sum = fabric.all_reduce(at::cat(flat), "mean");
    int64_t at = 0;
    for (const auto& gradient : these) {
      gradient.copy_(sum.narrow(0, at, gradient.numel()).view_as(gradient));
      at += gradient.numel();
    }
    rest.erase(rest.begin(), other.begin());
  }
}

}  // namespace

void BaseFinetuning::freeze(torch::nn::Module& module, bool train_bn) {
  for (auto* each : all_modules(module)) {
    const bool is_norm = detail::as_batch_norm(*each).has_value();
    set_requires_grad(*each, is_norm && train_bn);
    if (is_norm && !train_bn) each->eval();
  }
}

void BaseFinetuning::make_trainable(torch::nn::Module& module) {
  for (auto* each : all_modules(module)) {
    set_requires_grad(*each, true);
    if (detail::as_batch_norm(*each)) each->train();
  }
}

std::vector<Tensor> BaseFinetuning::trainable_parameters(const torch::nn::Module& module, bool train_bn) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<Tensor> found;
  // Looking changes nothing.
  for (auto* each : all_modules(const_cast<torch::nn::Module&>(module))) {
    if (!train_bn && detail::as_batch_norm(*each)) continue;
    for (const auto& parameter : each->parameters(/*recurse=*/false))
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) found.push_back(parameter);
  }
  return found;
}

void BaseFinetuning::unfreeze_and_add_param_group(torch::nn::Module& module, Optimizer& optimizer,
                                                  const Unfreeze& options) {
  std::unordered_set<const c10::TensorImpl*> were_frozen;
  for (const auto& parameter : module.parameters())
    if (!parameter.requires_grad()) were_frozen.insert(parameter.unsafeGetTensorImpl());
  make_trainable(module);
  if (!options.train_bn)
    for (auto* each : all_modules(module))
      if (detail::as_batch_norm(*each)) freeze(*each, /*train_bn=*/false);
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& parameter : optimizer.all_params()) known.insert(parameter.unsafeGetTensorImpl());
  auto parameters = trainable_parameters(module, options.train_bn);
  int removed = 0;
  std::erase_if(parameters, [&](const Tensor& p) {
    const bool is_known = known.contains(p.unsafeGetTensorImpl());
    if (is_known && were_frozen.contains(p.unsafeGetTensorImpl())) ++removed;
    return is_known;
  });
  if (removed > 0)
    log_warning(
        fmt::format("finetuning: {} parameters that are to train now are in {} already and stay in their group; "
                    "give it only those that need a gradient at first",
                    removed, optimizer.name()));
  if (parameters.empty()) return;
  optimizer.add_param_group(std::move(parameters),
                            {{"lr", options.lr ? *options.lr : optimizer.lr() / options.initial_denom_lr}});
}

void BaseFinetuning::setup(TrainerContext& run, std::string_view stage) {
  if (stage != "fit") return;
  freeze_before_training(run.module());
  late_.clear();
  groups_at_start_.clear();
  trainable_.clear();
  added_groups_.clear();
  for (const auto& parameter : unique_parameters(run.module()))
    if (!parameter.requires_grad()) late_.push_back(parameter);
}

void BaseFinetuning::on_fit_start(TrainerContext& run) {
  // Their copies are reduced by what "ddp" uses, which knows only parameters that train at setup; and ranks have
  // different parts, so that a mean over all ranks would mix them.
  auto& strategy = run.fabric().strategy();
  LEVIN_CHECK(late_.empty() || !strategy.shards() ||
                  (strategy.name() != "tensor_parallel" && strategy.name() != "expert_parallel"),
              "[finetuning] strategy \"", strategy.name(),
              "\" does not reduce gradients of parameters that are frozen at first; use strategy \"model_parallel\" "
              "with tp or ep");
  for (const auto& optimizer : run.optimizers()) groups_at_start_.push_back(optimizer.num_groups());
  if (!loaded_.empty()) {
    // Before the run loads the optimizers' states, which have these groups.
    auto parameters = run.module().named_parameters();
    std::unordered_set<std::string> trainable;
    for (const auto& name : loaded_.at("trainable").to_list()) trainable.insert(name.to_string());
    for (auto& item : parameters) item.value().set_requires_grad(trainable.contains(item.key()));
    added_groups_ = loaded_.at("added_groups").to_list();
    for (const auto& value : added_groups_) {
      const auto& group = value.to_dict();
      std::vector<Tensor> tensors;
      for (const auto& name : group.at("params").to_list()) {
        const auto* tensor = parameters.find(name.to_string());
        LEVIN_CHECK(tensor, "[finetuning] the checkpoint trains \"", name.to_string(),
                    "\", which the module does not have");
        tensors.push_back(*tensor);
      }
      const auto index = static_cast<size_t>(group.at("optimizer").to_int());
      LEVIN_CHECK(index < run.optimizers().size(), "[finetuning] the checkpoint has ", index + 1,
                  " optimizers, the run ", run.optimizers().size());
      run.optimizers()[index].add_param_group(std::move(tensors), {{"lr", group.at("lr").to_double()}});
    }
  }
  loaded_ = {};
  hold_frozen_norms(run.module());
}

void BaseFinetuning::on_train_epoch_start(TrainerContext& run) {
  for (auto optimizer : run.optimizers()) finetune_function(run.module(), run.current_epoch(), optimizer);
  remember(run);
  hold_frozen_norms(run.module());
}

// Before a loss scaler looks for infinities, so that all ranks find the same. What earlier batches of a step have left
// is equal on all ranks and stays so. Strategies that shard reduce whatever has a gradient: what a rank has is the mean
// already, and another part than other ranks have.
void BaseFinetuning::on_after_backward(TrainerContext& run) {
  if (late_.empty() || run.fabric().world_size() == 1 || run.fabric().strategy().shards()) return;
  average_gradients(run.fabric(), late_);
}

// The switch to training mode goes through the whole module; frozen statistics must not follow it.
void BaseFinetuning::hold_frozen_norms(TrainModuleBase& module) const {
  for (const auto& each : module.modules(/*include_self=*/false)) {
    const auto parameters = each->parameters(/*recurse=*/false);
    if (!parameters.empty() && detail::as_batch_norm(*each) &&
        std::ranges::none_of(parameters, [](const Tensor& p) { return p.requires_grad(); }))
      each->eval();
  }
}

void BaseFinetuning::remember(TrainerContext& run) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  trainable_.clear();
  for (const auto& item : run.module().named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (item.value().requires_grad()) trainable_.push_back(item.key());
  }
  added_groups_.clear();
  for (size_t i = 0; i < run.optimizers().size(); ++i)
    for (size_t g = groups_at_start_[i]; g < run.optimizers()[i].num_groups(); ++g) {
      const auto& optimizer = run.optimizers()[i];
      StateList parameters;
      for (const auto& parameter : optimizer.params(g)) {
        const auto name = names.find(parameter.unsafeGetTensorImpl());
        LEVIN_CHECK(name != names.end(), "[finetuning] a parameter that was added to ", optimizer.name(),
                    " is not one of the module's");
        parameters.emplace_back(name->second);
      }
      added_groups_.emplace_back(StateDict{
          {"optimizer", static_cast<int64_t>(i)}, {"lr", optimizer.lr(g)}, {"params", std::move(parameters)}});
    }
}

StateDict BaseFinetuning::state_dict() const {
  return {{"trainable", StateList(trainable_.begin(), trainable_.end())}, {"added_groups", added_groups_}};
}

BackboneFinetuning::BackboneFinetuning(BackboneFinetuningOptions options) : options_(std::move(options)) {
  constexpr auto kWhat = "[BackboneFinetuning] ";
  LEVIN_CHECK(options_.unfreeze_backbone_at_epoch >= 0, kWhat,
              "unfreeze_backbone_at_epoch=", options_.unfreeze_backbone_at_epoch, " must be at least 0");
  LEVIN_CHECK(options_.backbone_initial_ratio_lr > 0, kWhat,
              "backbone_initial_ratio_lr=", options_.backbone_initial_ratio_lr, " must be positive");
  LEVIN_CHECK(options_.backbone_initial_lr.value_or(1) > 0, kWhat,
              "backbone_initial_lr=", options_.backbone_initial_lr.value_or(0), " must be positive");
  if (!options_.lambda_func) options_.lambda_func = [](int64_t) { return 2.0; };
}

torch::nn::Module& BackboneFinetuning::backbone(TrainModuleBase& module) const {
  const auto children = module.named_children();
  if (const auto* found = children.find(options_.backbone)) return **found;
  std::vector<std::string> names;
  for (const auto& child : children) names.push_back(child.key());
  fail_unknown("BackboneFinetuning", "child of the module", options_.backbone, names);
}

void BackboneFinetuning::freeze_before_training(TrainModuleBase& module) {
  freeze(backbone(module), options_.train_bn);
}

void BackboneFinetuning::finetune_function(TrainModuleBase& module, int64_t epoch, Optimizer& optimizer) {
  if (epoch < options_.unfreeze_backbone_at_epoch) return;
  const double lr = optimizer.lr();
  if (epoch == options_.unfreeze_backbone_at_epoch) {
    backbone_lr_ = options_.backbone_initial_lr.value_or(lr * options_.backbone_initial_ratio_lr);
    unfreeze_and_add_param_group(backbone(module), optimizer, {.lr = backbone_lr_, .train_bn = options_.train_bn});
  } else {
    backbone_lr_ *= options_.lambda_func(epoch + 1);
    if (options_.should_align) backbone_lr_ = std::min(backbone_lr_, lr);
    optimizer.set_lr(backbone_lr_, optimizer.num_groups() - 1);
  }
  if (options_.verbose) log_info(fmt::format("learning rate {:.6g}, of the backbone {:.6g}", lr, backbone_lr_));
}

StateDict BackboneFinetuning::state_dict() const {
  auto state = BaseFinetuning::state_dict();
  state["backbone_lr"] = backbone_lr_;
  return state;
}

void BackboneFinetuning::load_state_dict(const StateDict& state) {
  backbone_lr_ = state.at("backbone_lr").to_double();
  BaseFinetuning::load_state_dict(state);
}

}  // namespace levin
