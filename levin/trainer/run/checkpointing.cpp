// What a checkpoint holds of a run.
#include "levin/trainer/run/checkpointing.h"

#include <optional>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/format.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/version.h"
#include "levin/nn/named_tensors.h"
#include "levin/optim/step/finite.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

// Bytes travel as text, with the rest of what belongs to one rank.
std::string bytes_of(const Tensor& tensor) {
  const auto flat = tensor.cpu().contiguous();
  return {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()};
}

std::string text_of(const StateDict& state) {
  return tree_text(StateDict{{"rank", state}}, [](const StatePath&, const Tensor&) -> std::string {
    throw Error("[trainer] a tensor in the state of a rank");
  });
}
StateDict state_of(const std::string& text) {
  return Tree(text, "the state of a rank").decode("rank", [](const std::string&) { return Tensor(); }).to_dict();
}

StateDict checkpoint(Run& run, bool weights_only) {
  StateDict all{{"epoch", run.state.progress.epoch},
                {"global_step", run.state.progress.global_step},
                {"levin_version", std::string(kVersion)},
                {"model", module_state_dict(*run.model.module)}};
  if (!run.model.module->hparams.empty()) all["hyper_parameters"] = run.model.module->hparams;
  if (run.model.data) {
    if (!run.model.data->hparams.empty()) all["datamodule_hyper_parameters"] = run.model.data->hparams;
    if (auto state = run.model.data->state_dict(); !state.empty()) all["datamodule"] = std::move(state);
  }
  if (!weights_only) {
    StateList optimizers, schedulers;
    for (const auto& optimizer : run.model.optimizers) optimizers.emplace_back(optimizer.state_dict());
    for (const auto& config : run.model.schedulers) schedulers.emplace_back(config.scheduler.state_dict());
    StateDict callbacks;
    for (const auto& callback : run.hooks.callbacks())
      if (auto state = callback->state_dict(); !state.empty()) callbacks[callback->state_key()] = std::move(state);

    const auto& kept = run.checkpoints;
    StateDict mine{{"rng", kept.rng_before_validation ? *kept.rng_before_validation : rng_state(run)},
                   {"metrics", run.metrics.train.state_dict()}};
    StateDict values;
    for (const auto& [name, value] : run.metrics.published.callback) values[name] = metric_number(value);
    mine["callback_metrics"] = std::move(values);
    StateList ranks;
    if (run.fabric->world_size() > 1) {
      for (const auto& text : gather_strings(run.fabric->strategy().group(), text_of(mine)))
        ranks.emplace_back(state_of(text));
    } else {
      ranks.emplace_back(std::move(mine));
    }

    all["optimizers"] = std::move(optimizers);
    all["schedulers"] = std::move(schedulers);
    if (auto* scaler = run.fabric->grad_scaler()) all["scaler"] = scaler->state_dict();
    const auto fp8 = run.fabric->fp8_state();
    if (auto histories = fp8.gathered(run.state.fitting ? fp8.state_dict() : run.model.fp8); !histories.empty())
      all[kFp8State] = std::move(histories);
    StateList seen;
    for (const auto batches : run.data.val.seen) seen.emplace_back(batches);
    StateDict fit = run.state.state_dict();
    if (!run.data.train.loaders.empty()) {
      const auto& source = *run.data.train.loaders.front();
      if (source.has_state()) all["train_loader"] = source.state_dict();
      if (const auto batch = source.batch()) fit["loader_batch"] = *batch;
    }
    all["loops"] = StateDict{{"fit", std::move(fit)}, {"validation", StateDict{{"seen", std::move(seen)}}}};
    all["callbacks"] = std::move(callbacks);
    all["loggers"] = kept.logs_before_validation ? *kept.logs_before_validation : log_positions(run);
    all["ranks"] = std::move(ranks);
  }
  const auto* site = run.state.place.site;
  call<Hook::on_save_checkpoint>(run, all);
  run.state.place.site = site;
  return all;
}

/// What Ctrl-C left is done with when a checkpoint that is further stands in its folder.
void remove_interrupted(Run& run, const std::filesystem::path& written) {
  auto& interrupted = run.checkpoints.interrupted;
  if (interrupted.empty() || written == interrupted || written.parent_path() != interrupted.parent_path()) return;
  if (run.fabric->is_global_zero())
    if (const auto* format = find_checkpoint_format(interrupted, run.fabric->checkpoint_format()))
      format->remove(interrupted);
  interrupted.clear();
}

/// `model`, unless it is empty, is the model of the checkpoint; the run's own is then what a run resumes from.
void write(Run& run, const std::filesystem::path& path, bool weights_only, StateDict model) {
  const auto time = run.hooks.span(Action::kSaveCheckpoint);
  auto all = checkpoint(run, weights_only);
  if (!model.empty()) {
    StateValue own = std::exchange(all["model"], std::move(model));
    all[kResumeModel] = std::move(own);
  }
  std::optional<ShardTargets> targets;
  if (auto* shards = run.fabric->strategy().shards()) targets.emplace(targets_in_checkpoint(run, *shards));
  run.fabric->save(path.string(), all, {.targets = targets ? &*targets : nullptr});
  if (weights_only || !run.state.fitting) return;
  note_good_checkpoint(run, path);
  remove_interrupted(run, path);
}

}  // namespace

void note_good_checkpoint(Run& run, const std::filesystem::path& path) {
  if (run.plan.on_nonfinite != NonFinitePolicy::kRollback) return;
  auto& good = run.checkpoints.good;
  std::erase_if(good, [&](const auto& one) { return one.path == path; });
  good.push_back({path, run.state.progress.total_batches});
}

ShardTargets targets_in_checkpoint(Run& run, ShardMap& shards) {
  const auto& module = *run.model.module;
  ShardTargets targets(shards);
  targets.add({"model"}, module);
  targets.add({"current_model_state"}, module);
  targets.add({kResumeModel}, module);
  for (const auto& callback : run.hooks.callbacks())
    targets.add({"callbacks", callback->state_key(), "weights"}, module);
  const auto& optimizers = run.model.optimizers;
  for (size_t i = 0; i < optimizers.size(); ++i) targets.add({"optimizers", std::to_string(i)}, optimizers[i]);
  return targets;
}

StateDict rng_state(const Run& run) {
  const auto& fabric = *run.fabric;
  StateDict rng{{"cpu", bytes_of(RngState::capture().cpu)}};
  if (!fabric.device().is_cpu()) rng["device"] = bytes_of(fabric.accelerator().rng_state(fabric.device()));
  return rng;
}

bool weights_are_finite(Run& run) {
  std::vector<Tensor> weights;
  std::string first;
  for (const auto& [name, tensor] : named_tensors(*run.model.module))
    if (tensor.requires_grad()) {
      if (tensor.is_cpu() && first.empty() && !optim::all_finite({&tensor, 1})) first = name;
      if (!tensor.is_cpu()) weights.push_back(tensor);
    }
  if (first.empty() && !optim::all_finite(weights)) first = "on the device";
  bool bad = !first.empty();
  if (run.fabric->world_size() > 1)
    bad = run.fabric->all_reduce(at::scalar_tensor(bad ? 1.0 : 0.0).to(run.fabric->device()), "max").item<float>() != 0;
  const auto step = run.state.progress.global_step;
  if (bad && std::exchange(run.checkpoints.warned_at, step) != step)
    log_warning(concat("[trainer] weights are nan or inf after step ", step, " of epoch ", run.state.progress.epoch,
                       first.empty() ? "" : concat(" (", first, ")"),
                       ": no checkpoint of them is written, and those before stay"));
  return !bad;
}

bool write_checkpoint(Run& run, const std::filesystem::path& path, bool weights_only) {
  if (!weights_are_finite(run)) return false;
  write(run, path, weights_only, {});
  return true;
}

void save_checkpoint(Run& run, const std::filesystem::path& path, bool weights_only, std::function<void()> then,
                     bool validated) {
  LEVIN_CHECK(run.model.module, "[trainer.save_checkpoint] nothing is running");
  const auto& state = run.state;
  const bool inside_window = state.window_open && !state.inside_batch;
  if (state.between_steps() || (inside_window && weights_only && validated)) {
    if (write_checkpoint(run, path, weights_only) && then) then();
    return;
  }
  Checkpoints::Waiting waiting{path, weights_only, std::move(then)};
  if (inside_window && validated)
    waiting.model = copy_of_state(checkpoint(run, /*weights_only=*/true).at("model")).to_dict();
  run.checkpoints.waiting.push_back(std::move(waiting));
}

void write_waiting_checkpoints(Run& run) {
  if (run.checkpoints.waiting.empty() || run.state.window_open) [[likely]]
    return;
  const bool finite = weights_are_finite(run);
  for (auto& waiting : std::exchange(run.checkpoints.waiting, {})) {
    if (!finite) continue;
    write(run, waiting.path, waiting.weights_only, std::move(waiting.model));
    if (waiting.then) waiting.then();
  }
}

std::filesystem::path hpc_path(const Run& run, int64_t number) {
  return run.plan.root_dir / concat("hpc_ckpt_", number, ".ckpt");
}

}  // namespace levin::detail
