// How a run resumes from a checkpoint.
#include <algorithm>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/environments/slurm_requeue.h"
#include "levin/nn/named_tensors.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

Tensor bytes_to_tensor(const std::string& bytes) {
  auto tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

Tensor on_host(const Tensor& tensor) {
  return tensor.is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
}

/// Runs a step of restoring; with several ranks all resume, or all throw.
void restore_together(Run& run, const std::function<void()>& step) {
  if (run.fabric->world_size() == 1)
    step();
  else
    together(run.fabric->strategy().group(), step);
}

/// How many parameters each optimizer has.
std::vector<size_t> parameter_counts(const Run& run) {
  std::vector<size_t> counts;
  for (const auto& optimizer : run.model.optimizers) counts.push_back(optimizer.all_params().size());
  return counts;
}

}  // namespace

/// As it was before a checkpoint came over it, in host memory.
struct Checkpoints::BeforeRestore {
  std::vector<std::pair<Tensor, Tensor>> model;  // of the module, and its old value
  StateDict data, scaler;
  std::vector<std::pair<std::shared_ptr<Callback>, StateDict>> callbacks;
  RngState rng;
  Tensor device_rng;
  std::shared_ptr<BatchSource> loader;
  StateDict loader_state;
  std::vector<size_t> parameter_counts;  // when the checkpoint was read

  explicit BeforeRestore(Run& run) : rng(RngState::capture()), parameter_counts(detail::parameter_counts(run)) {
    for (auto& [name, tensor] : named_tensors(*run.model.module))
      if (tensor.defined() && !tensor.is_meta()) model.emplace_back(tensor, on_host(tensor));
    if (run.model.data) data = copy_of_state(run.model.data->state_dict()).to_dict();
    if (const auto* grad_scaler = run.fabric->grad_scaler())
      scaler = copy_of_state(grad_scaler->state_dict()).to_dict();
    for (const auto& callback : run.hooks.callbacks())
      if (auto state = callback->state_dict(); !state.empty())
        callbacks.emplace_back(callback.get(), copy_of_state(state).to_dict());
    if (!run.fabric->device().is_cpu()) device_rng = run.fabric->accelerator().rng_state(run.fabric->device());
  }
};

void put_back_restored(Run& run) noexcept {
  const auto before = std::exchange(run.checkpoints.before_restore, nullptr);
  if (!before) return;
  const auto put_back = [](const char* what, auto&& step) {
    try {
      step();
    } catch (const std::exception& error) {
      log_warning(concat("[trainer] ", what, " could not be put back as before the checkpoint: ", one_line(error)));
    }
  };
  run.state.progress = {};
  run.checkpoints.loaded.reset();
  put_back("the module", [&] {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, value] : before->model) tensor.copy_(value);
  });
  if (run.model.data && !before->data.empty())
    put_back("the data module", [&] { run.model.data->load_state_dict(before->data); });
  if (auto* scaler = run.fabric->grad_scaler(); scaler && !before->scaler.empty())
    put_back("the loss scaler", [&] { scaler->load_state_dict(before->scaler); });
  for (const auto& [callback, state] : before->callbacks)
    put_back("a callback", [&, &c = callback, &old = state] { c->load_state_dict(old); });
  if (before->loader) put_back("the loader", [&] { before->loader->load_state_dict(before->loader_state); });
  put_back("the random generators", [&] {
    before->rng.restore();
    if (before->device_rng.defined()) run.fabric->accelerator().set_rng_state(run.fabric->device(), before->device_rng);
  });
}

namespace {

/// The loader, and the count of batches with it, to where the epoch is resumed.
void restore_loader(Run& run) {
  auto& state = run.state;
  const auto& loaded = *run.checkpoints.loaded;
  const auto source = run.data.train.loaders.front();
  const auto* loader_state = loaded.find("train_loader");
  const auto& fit = loaded.at("loops").to_dict().at("fit").to_dict();
  const auto batches = run.data.train.batches.front();
  const int64_t batch = state.progress.batch;
  if (!fit.find("batches_done")) state.batches_done = batch > 0 && batches && batch >= *batches;
  if (state.batches_done) {
    if (batches) state.move_to(*batches);
  } else if (loader_state && source->has_state()) {
    auto& before = *run.checkpoints.before_restore;
    before.loader_state = source->state_dict();
    before.loader = source;
    source->load_state_dict(loader_state->to_dict());
    // Only where it differs: a loader may count batches that it left out.
    const auto* was = fit.find("loader_batch");
    if (const auto now = source->batch(); was && now && *now != was->to_int()) state.move_to(*now);
  } else {
    source->skip_to(state.progress.epoch, batch);
    if (const auto ranks = loaded.at("ranks").to_list().size(); ranks != static_cast<size_t>(run.fabric->world_size()))
      log_warning(concat("[trainer] the training loader has no state, so each rank skips ", batch,
                         " batches of its own, as each of the ", ranks,
                         " ranks of the checkpoint did; resume from the end of an epoch if its ranks share the data"));
  }
  if (state.progress.batch != batch)
    log_info(concat("[trainer] the checkpoint was made after batch ", batch, " of its epoch, which is batch ",
                    state.progress.batch, " with the batch size and the ranks of this run"));
}

}  // namespace

std::filesystem::path find_checkpoint(Run& run, const std::string& asked, bool fit) {
  namespace fs = std::filesystem;
  if (asked.empty() || asked == "hpc") {
    // A cluster that has started the job again wants it to resume.
    const bool restarted = asked.empty();
    if (restarted && (!fit || !slurm_job_to_requeue())) return {};
    const auto newest = newest_hpc_number(run.plan.root_dir);
    if (restarted && !newest) return {};
    LEVIN_CHECK(newest, "[trainer] ckpt_path \"hpc\": there is no hpc_ckpt_N.ckpt in ", run.plan.root_dir.string());
    const auto path = hpc_path(run, *newest);
    if (restarted) log_info(concat("[trainer] this job was started again: it resumes from ", path.string()));
    return path;
  }
  if (asked == "best") {
    const auto best = best_checkpoint(run.hooks.callbacks());
    LEVIN_CHECK(best, "[trainer] ckpt_path \"best\": no ModelCheckpoint of this trainer has saved anything yet");
    return *best;
  }
  if (asked == "last") {
    auto last = last_checkpoint(run.hooks.callbacks(), run.context, /*resumes=*/fit);
    LEVIN_CHECK(
        fit || !last.path.empty(), "[trainer] ckpt_path \"last\": there is no checkpoint in \"",
        run.plan.root_dir.string(),
        "\" whose weights could be evaluated; give a path, or leave ckpt_path out for the weights of the module");
    if (last.path.empty())
      log_info("[trainer] ckpt_path \"last\": there is no checkpoint yet, so the run starts from the beginning");
    run.checkpoints.resumes_last = fit && !last.path.empty();
    run.checkpoints.interrupted = std::move(last.interrupted);
    return last.path;
  }
  LEVIN_CHECK(fs::exists(asked), "[trainer] ckpt_path \"", asked,
              "\" does not exist; give a checkpoint folder, \"last\", \"best\" or \"hpc\"");
  return asked;
}

void restore_model(Run& run, bool fit) {
  auto& loaded = run.checkpoints.loaded;
  auto& before = run.checkpoints.before_restore;
  const auto& ckpt_path = run.checkpoints.ckpt_path;
  if (ckpt_path.empty()) return;
  run.fabric->barrier("load a checkpoint");
  auto* shards = run.fabric->strategy().shards();
  // A run that only evaluates has no optimizers to take their states, which may be large.
  const std::vector<std::string> skip = fit ? std::vector<std::string>() : std::vector<std::string>{"optimizers"};
  if (shards)
    loaded = load_checkpoint(ckpt_path, targets_in_checkpoint(run, *shards),
                             {.skip = skip, .format = run.fabric->checkpoint_format()});
  else
    restore_together(
        run, [&] { loaded = load_checkpoint(ckpt_path, {.skip = skip, .format = run.fabric->checkpoint_format()}); });
  if (fit) {
    LEVIN_CHECK(loaded->contains("loops"), "[trainer.fit] ", ckpt_path.string(),
                " holds weights only, so no run can resume from it; load it into the module before fit");
    const auto epoch = loaded->at("epoch").to_int();
    LEVIN_CHECK(run.plan.max_epochs < 0 || epoch <= run.plan.max_epochs, "[trainer.fit] ", ckpt_path.string(),
                " is at epoch ", epoch, ", which is beyond max_epochs ", run.plan.max_epochs);
  }
  if (const auto* model = loaded->find(kResumeModel)) {
    if (fit) (*loaded)["model"] = *model;
    loaded->erase(kResumeModel);
  }
  before = std::make_shared<Checkpoints::BeforeRestore>(run);
  restore_together(run, [&] {
    if (run.model.data)
      if (const auto* state = loaded->find("datamodule")) run.model.data->load_state_dict(state->to_dict());
  });
  run.state.place.site = &kNoLogging;
  run.model.module->on_load_checkpoint(*loaded);
  call_callbacks<Hook::on_load_checkpoint>(run, *loaded);
  restore_together(
      run, [&] { load_module_state_dict(*run.model.module, loaded->at("model").to_dict(), {.shards = shards}); });
  loaded->erase("model");  // its memory is that of the old weights now
  log_info(concat("[trainer] ", fit ? "resumes from " : "weights from ", ckpt_path.string()));
  if (!fit) {
    loaded.reset();
    before.reset();
    return;
  }
  const auto& states = loaded->at("callbacks").to_dict();
  std::vector<std::string> left;
  for (const auto& [key, state] : states) left.push_back(key);
  restore_together(run, [&] {
    for (const auto& callback : run.hooks.callbacks())
      if (const auto* state = states.find(callback->state_key())) {
        callback->load_state_dict(state->to_dict());
        std::erase(left, callback->state_key());
      }
  });
  if (!left.empty())
    log_warning(concat("[trainer] the checkpoint holds the state of ", join(left),
                       ", which this trainer does not have; ",
                       left.size() > 1 ? "they are left out" : "it is left out"));
}

namespace {

/// Callbacks may have given optimizers more parameters since the checkpoint was read (finetuning): of their states,
/// too, a rank reads its own part.
void read_late_parameters(Run& run) {
  auto* shards = run.fabric->strategy().shards();
  const auto& known = run.checkpoints.before_restore->parameter_counts;
  if (!shards || parameter_counts(run) == known) return;
  auto& loaded = *run.checkpoints.loaded;
  std::vector<std::string> skip{"model", "current_model_state", kResumeModel};
  for (const auto& [name, value] : loaded)
    if (name != "optimizers") skip.push_back(name);
  const auto again =
      load_checkpoint(run.checkpoints.ckpt_path, targets_in_checkpoint(run, *shards),
                      {.verify = false, .skip = std::move(skip), .format = run.fabric->checkpoint_format()});
  StateList states = loaded.at("optimizers").to_list();
  const auto& read = again.at("optimizers").to_list();
  for (size_t i = 0; i < std::min({states.size(), read.size(), known.size()}); ++i) {
    StateDict optimizer = states[i].to_dict();
    for (const auto& [index, value] : read[i].to_dict().at("state").to_dict())
      if (std::stoull(index) >= known[i]) optimizer["state"].to_dict()[index] = value;
    states[i] = std::move(optimizer);
  }
  loaded["optimizers"] = std::move(states);
}

}  // namespace

void restore_training(Run& run) {
  auto& loaded = run.checkpoints.loaded;
  if (!loaded) return;
  read_late_parameters(run);
  restore_together(run, [&] {
    const auto& optimizers = loaded->at("optimizers").to_list();
    const auto& schedulers = loaded->at("schedulers").to_list();
    LEVIN_CHECK(optimizers.size() == run.model.optimizers.size(), "[trainer.fit] the checkpoint has ",
                optimizers.size(), " optimizers, the module ", run.model.optimizers.size());
    LEVIN_CHECK(schedulers.size() == run.model.schedulers.size(), "[trainer.fit] the checkpoint has ",
                schedulers.size(), " schedulers, the module ", run.model.schedulers.size());
    if (auto* scaler = run.fabric->grad_scaler())
      if (const auto* state = loaded->find("scaler")) scaler->load_state_dict(state->to_dict());
    if (const auto* state = loaded->find(kFp8State)) run.fabric->fp8_state().load_state_dict(state->to_dict());
    for (size_t i = 0; i < optimizers.size(); ++i) run.model.optimizers[i].load_state_dict(optimizers[i].to_dict());
    for (size_t i = 0; i < schedulers.size(); ++i)
      run.model.schedulers[i].scheduler.load_state_dict(schedulers[i].to_dict());
    run.state.load_state_dict(loaded->at("loops").to_dict().at("fit").to_dict());
  });
  note_good_checkpoint(run, run.checkpoints.ckpt_path);
}

void restore_position(Run& run) {
  auto& loaded = run.checkpoints.loaded;
  auto& before = run.checkpoints.before_restore;
  const auto& ranks = loaded->at("ranks").to_list();
  const auto rank = static_cast<size_t>(run.fabric->global_rank());
  restore_together(run, [&] {
    if (run.state.progress.batch > 0 && !run.state.progress.closing_epoch) restore_loader(run);
    const auto& seen = loaded->at("loops").to_dict().at("validation").to_dict().at("seen").to_list();
    for (size_t i = 0; i < std::min(seen.size(), run.data.val.seen.size()); ++i)
      run.data.val.seen[i] = seen[i].to_int();
    if (rank >= ranks.size()) return;
    const auto& mine = ranks[rank].to_dict();
    run.metrics.train.load_state_dict(mine.at("metrics").to_dict());
    for (const auto& [name, value] : mine.at("callback_metrics").to_dict())
      run.metrics.published.callback[name] = value.to_double();
    const auto& rng = mine.at("rng").to_dict();
    RngState state;
    state.cpu = bytes_to_tensor(rng.at("cpu").to_string());
    state.restore();
    if (const auto* device = rng.find("device"); device && !run.fabric->device().is_cpu())
      run.fabric->accelerator().set_rng_state(run.fabric->device(), bytes_to_tensor(device->to_string()));
  });
  // Of other ranks than these, or of none: ranks that share layers must draw the same masks all the same.
  run.fabric->strategy().share_random_state();
  if (ranks.size() != static_cast<size_t>(run.fabric->world_size()))
    log_warning(concat("[trainer] the checkpoint is of ", ranks.size(), " ranks and this run has ",
                       run.fabric->world_size(), ": random numbers and metrics of the epoch under way will differ"));
  // Last, since rows that are dropped do not come back.
  restore_together(run, [&] {
    const auto& loggers = loaded->at("loggers").to_list();
    if (!run.fabric->is_global_zero()) return;
    for (size_t i = 0; run.logs.resumed && i < std::min(loggers.size(), run.logs.loggers.size()); ++i)
      run.logs.loggers[i]->resume(loggers[i].to_dict());
    log_hparams(run);
  });
  before.reset();
  // The tensors of the checkpoint are not needed any more.
  loaded = StateDict{};
}

}  // namespace levin::detail
