#include "levin/trainer/callbacks/model_pruning.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/nn/tie.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {
namespace {

bool holds(const EpochCondition& condition, int64_t epoch) {
  if (const auto* plain = std::get_if<bool>(&condition)) return *plain;
  return std::get<1>(condition)(epoch);
}

bool can_hold(const EpochCondition& condition) {
  const auto* plain = std::get_if<bool>(&condition);
  return !plain || *plain;
}

std::string last_name(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

int64_t zeros(const Tensor& mask) {
  return mask.defined() ? mask.numel() - mask.count_nonzero().item<int64_t>() : 0;
}

}  // namespace

ModelPruning::ModelPruning(ModelPruningOptions options) : options_(std::move(options)) {
  constexpr auto kWhat = "[ModelPruning] ";
  static const std::vector<std::string> known{"l1_unstructured", "random_unstructured"};
  if (std::ranges::find(known, options_.pruning_fn) == known.end())
    fail_unknown("ModelPruning", "pruning_fn", options_.pruning_fn, known);
  LEVIN_CHECK(!options_.parameter_names.empty(), kWhat, "parameter_names is empty");
  if (const auto* share = std::get_if<double>(&options_.amount))
    LEVIN_CHECK(*share >= 0 && *share <= 1, kWhat, "amount=", *share,
                " must be a fraction between 0.0 and 1.0, or a number of weights as an integer");
  if (const auto* count = std::get_if<int64_t>(&options_.amount))
    LEVIN_CHECK(*count >= 0, kWhat, "amount=", *count, " must be at least 0");
  LEVIN_CHECK(options_.verbose >= 0 && options_.verbose <= 2, kWhat, "verbose=", options_.verbose,
              " must be 0, 1 or 2");
}

void ModelPruning::choose_targets(TrainModuleBase& module) {
  const auto before = std::move(targets_);
  targets_.clear();
  std::vector<std::string> names;
  const auto wanted = [&](const std::string& name) {
    if (!options_.parameters_to_prune.empty())
      return std::ranges::find(options_.parameters_to_prune, name) != options_.parameters_to_prune.end();
    return std::ranges::find(options_.parameter_names, last_name(name)) != options_.parameter_names.end();
  };
  for (const auto& parameter : named_unique_parameters(module)) {
    names.push_back(parameter.name);
    names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
    if (wanted(parameter.name) || std::ranges::any_of(parameter.aliases, wanted))
      targets_.push_back({parameter.name, parameter.tensor, {}, {}});
  }
  // A run before this one, of the same module, whose pruning was not made permanent.
  for (auto& target : targets_)
    for (const auto& old : before)
      if (old.parameter.is_same(target.parameter)) target.mask = old.mask;
  for (const auto& asked : options_.parameters_to_prune)
    if (std::ranges::find(names, asked) == names.end()) fail_unknown("ModelPruning", "parameter", asked, names);
  LEVIN_CHECK(!targets_.empty(), "[ModelPruning] the module has no parameter named ",
              join(options_.parameter_names, " or "));
}

void ModelPruning::on_fit_start(TrainerContext& run) {
  LEVIN_CHECK(!run.fabric().strategy().shards() || run.fabric().world_size() == 1, "[ModelPruning] strategy \"",
              run.fabric().strategy().name(),
              "\" gives each rank a part of the weights, and pruning compares all of them; use strategy \"ddp\"");
  at::NoGradGuard no_grad;
  choose_targets(run.module());
  has_masks_ = std::ranges::all_of(targets_, [](const Target& target) { return target.mask.defined(); });
  if (can_hold(options_.use_lottery_ticket_hypothesis))
    for (auto& target : targets_) target.original = target.parameter.detach().clone();
  for (auto& target : targets_) {
    if (const auto* state = loaded_.find(target.name)) {
      const auto load = [&](const char* what, Tensor& into) {
        if (const auto* value = state->to_dict().find(what)) {
          LEVIN_CHECK(value->to_tensor().sizes() == target.parameter.sizes(), "[ModelPruning] the ", what, " of \"",
                      target.name, "\" in the checkpoint has another shape than the parameter");
          into = value->to_tensor().to(target.parameter.options().requires_grad(false), /*non_blocking=*/false,
                                       /*copy=*/true);
        }
      };
      load("original", target.original);
      load("mask", target.mask);
      has_masks_ |= target.mask.defined();
    }
  }
  loaded_ = {};
  masked_at_step_ = run.global_step();
}

// What is smallest among `values` [n], as ones; the rest is zero.
Tensor ModelPruning::lowest(const Tensor& values, int64_t epoch) const {
  const auto size = values.numel();
  int64_t count = 0;
  if (const auto* number = std::get_if<int64_t>(&options_.amount)) {
    LEVIN_CHECK(*number <= size, "[ModelPruning] amount=", *number, " is more than the ", size,
                " weights that are left");
    count = *number;
  } else {
    const auto* share = std::get_if<double>(&options_.amount);
    // To even at a half, as Python's round().
    count = static_cast<int64_t>(
        std::nearbyint((share ? *share : std::get<2>(options_.amount)(epoch)) * static_cast<double>(size)));
  }
  auto chosen = at::zeros({size}, values.options().dtype(at::kBool));
  const auto importance = options_.pruning_fn == "l1_unstructured" ? values.abs() : at::rand_like(values);
  if (count > 0) chosen.index_fill_(0, std::get<1>(at::topk(importance, count, /*dim=*/0, /*largest=*/false)), true);
  return chosen;
}

void ModelPruning::prune(TrainerContext& run) {
  const int64_t epoch = run.current_epoch();
  if (!holds(options_.apply_pruning, epoch)) return;
  at::NoGradGuard no_grad;
  std::vector<int64_t> before;
  if (options_.verbose > 0)
    for (const auto& target : targets_) before.push_back(zeros(target.mask));

  // Each set of targets is pruned as one long vector.
  std::vector<std::vector<Target*>> sets;
  for (auto& target : targets_) {
    if (sets.empty() || !options_.use_global_unstructured) sets.emplace_back();
    sets.back().push_back(&target);
  }
  for (auto& set : sets) {
    std::vector<Tensor> values, kept;
    for (auto* target : set) {
      const auto& parameter = target->parameter;
      values.push_back(parameter.detach().flatten().to(set[0]->parameter.options().dtype(at::kFloat)));
      kept.push_back(target->mask.defined() ? target->mask.flatten().to(values.back().device(), at::kBool)
                                            : at::ones({parameter.numel()}, values.back().options().dtype(at::kBool)));
    }
    auto keep = at::cat(kept);
    const auto left = keep.nonzero().flatten();
    const auto dropped = lowest(at::cat(values).index_select(0, left), epoch);
    keep.index_fill_(0, left.masked_select(dropped), false);
    // Ranks have the same weights, but not the same random numbers.
    if (run.fabric().world_size() > 1) keep = run.fabric().broadcast(keep.to(at::kByte)).to(at::kBool);
    int64_t at = 0;
    for (auto* target : set) {
      const auto& parameter = target->parameter;
      target->mask =
          keep.narrow(0, at, parameter.numel()).view(parameter.sizes()).to(parameter.options().requires_grad(false));
      at += parameter.numel();
    }
  }
  has_masks_ = true;
  if (holds(options_.use_lottery_ticket_hypothesis, epoch))
    for (auto& target : targets_) target.parameter.copy_(target.original);
  apply_masks();
  if (options_.verbose > 0) report(run, before);
  int64_t pruned = 0, all = 0;
  for (const auto& target : targets_) {
    pruned += zeros(target.mask);
    all += target.mask.numel();
  }
  sparsity_ = static_cast<double>(pruned) / static_cast<double>(all);
  run.log("sparsity", sparsity_, {.on_step = false, .on_epoch = true, .batch_size = 1});
}

void ModelPruning::apply_masks() {
  at::NoGradGuard no_grad;
  std::vector<Tensor> parameters, masks;
  for (const auto& target : targets_) {
    parameters.push_back(target.parameter);
    masks.push_back(target.mask);
  }
  at::_foreach_mul_(parameters, masks);
}

// Before clipping, so that what is pruned has no part in the norm.
void ModelPruning::on_before_optimizer_step(TrainerContext&, Optimizer&) {
  if (!has_masks_) return;
  at::NoGradGuard no_grad;
  std::vector<Tensor> gradients, masks;
  for (const auto& target : targets_)
    if (target.parameter.grad().defined()) {
      gradients.push_back(target.parameter.grad());
      masks.push_back(target.mask);
    }
  if (!gradients.empty()) at::_foreach_mul_(gradients, masks);
}

// Momentum and weight decay move weights that have no gradient.
void ModelPruning::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (!has_masks_ || run.global_step() == masked_at_step_) return;
  masked_at_step_ = run.global_step();
  apply_masks();
}

void ModelPruning::on_train_epoch_end(TrainerContext& run) {
  if (options_.prune_on_train_epoch_end) prune(run);
}

void ModelPruning::on_validation_epoch_end(TrainerContext& run) {
  if (!options_.prune_on_train_epoch_end && run.fitting() && !run.sanity_checking()) prune(run);
}

void ModelPruning::on_train_end(TrainerContext&) {
  if (!options_.make_pruning_permanent) return;
  for (auto& target : targets_) target.mask.reset();
  has_masks_ = false;
}

void ModelPruning::report(TrainerContext& run, const std::vector<int64_t>& before) const {
  const auto line = [](int64_t was, int64_t is, int64_t of) {
    const auto share = [&](int64_t n) { return 100.0 * static_cast<double>(n) / static_cast<double>(of); };
    return fmt::format("{} ({:.2f} %) -> {} ({:.2f} %) of {}", was, share(was), is, share(is), of);
  };
  int64_t was = 0, is = 0, of = 0;
  std::vector<std::string> lines;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const int64_t now = zeros(targets_[i].mask), all = targets_[i].parameter.numel();
    was += before[i];
    is += now;
    of += all;
    lines.push_back("  " + targets_[i].name + ": " + line(before[i], now, all));
  }
  run.print("pruned by ", options_.pruning_fn, ": ", line(was, is, of));
  if (options_.verbose == 2)
    for (const auto& each : lines) run.print(each);
}

StateDict ModelPruning::state_dict() const {
  StateDict state;
  for (const auto& target : targets_) {
    StateDict one;
    if (target.original.defined()) one["original"] = target.original;
    if (target.mask.defined()) one["mask"] = target.mask;
    if (!one.empty()) state[target.name] = std::move(one);
  }
  return state;
}

}  // namespace levin
