// What a checkpoint holds of a run, and how a run goes on from one.
#include <algorithm>
#include <charconv>
#include <csignal>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/format.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/version.h"
#include "levin/environments/slurm_requeue.h"
#include "levin/nn/named_tensors.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

StateDict progress_state(const Progress& p, bool batch_stepped) {
  return {{"epoch", p.epoch},
          {"global_step", p.global_step},
          {"batch", p.batch},
          {"total_batches", p.total_batches},
          {"stepped_batches", p.stepped_batches},
          {"validated_at", p.validated_at},
          {"closing_epoch", p.closing_epoch},
          {"epoch_cut", p.epoch_cut},
          {"batch_stepped", batch_stepped}};
}

Progress progress_from(const StateDict& state) {
  Progress p;
  p.epoch = state.at("epoch").to_int();
  p.global_step = state.at("global_step").to_int();
  p.batch = state.at("batch").to_int();
  p.total_batches = state.at("total_batches").to_int();
  p.stepped_batches = state.at("stepped_batches").to_int();
  p.validated_at = state.at("validated_at").to_int();
  p.closing_epoch = state.at("closing_epoch").to_bool();
  p.epoch_cut = state.at("epoch_cut").to_bool();
  return p;
}

// Bytes travel as text, with the rest of what belongs to one rank.
std::string bytes_of(const Tensor& tensor) {
  const auto flat = tensor.cpu().contiguous();
  return {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()};
}
Tensor bytes_to_tensor(const std::string& bytes) {
  auto tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::string text_of(const StateDict& state) {
  return tree_text(StateDict{{"rank", state}}, [](const StatePath&, const Tensor&) -> std::string {
    throw Error("[trainer] a tensor in the state of a rank");
  });
}
StateDict state_of(const std::string& text) {
  return Tree(text, "the state of a rank").decode("rank", [](const std::string&) { return Tensor(); }).to_dict();
}

/// Where a checkpoint has tensors of which a rank may hold parts: the weights, those that callbacks keep beside them,
/// and what optimizers keep.
ShardTargets targets_in_checkpoint(ShardMap& shards, const torch::nn::Module& module,
                                   const std::vector<Optimizer>& optimizers,
                                   const std::vector<CallbackRef>& callbacks) {
  ShardTargets targets(shards);
  targets.add({"model"}, module);
  targets.add({"current_model_state"}, module);
  for (const auto& callback : callbacks) targets.add({"callbacks", callback->state_key(), "weights"}, module);
  for (size_t i = 0; i < optimizers.size(); ++i) targets.add({"optimizers", std::to_string(i)}, optimizers[i]);
  return targets;
}

Tensor on_host(const Tensor& tensor) {
  return tensor.is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
}

}  // namespace

/// As it was before a checkpoint came over it, in host memory.
struct Run::BeforeRestore {
  std::vector<std::pair<Tensor, Tensor>> model;  // of the module, and its old value
  StateDict data, scaler;
  std::vector<std::pair<std::shared_ptr<Callback>, StateDict>> callbacks;
  RngState rng;
  Tensor device_rng;
  std::shared_ptr<BatchSource> loader;
  StateDict loader_state;

  explicit BeforeRestore(Run& run) : rng(RngState::capture()) {
    for (auto& [name, tensor] : named_tensors(*run.module_))
      if (tensor.defined() && !tensor.is_meta()) model.emplace_back(tensor, on_host(tensor));
    if (run.data_) data = copy_of_state(run.data_->state_dict()).to_dict();
    if (const auto* grad_scaler = run.fabric_->grad_scaler())
      scaler = copy_of_state(grad_scaler->state_dict()).to_dict();
    for (const auto& callback : run.callbacks_)
      if (auto state = callback->state_dict(); !state.empty())
        callbacks.emplace_back(callback.get(), copy_of_state(state).to_dict());
    if (!run.fabric_->device().is_cpu()) device_rng = run.fabric_->accelerator().rng_state(run.fabric_->device());
  }
};

void Run::put_back_restored() noexcept {
  const auto before = std::exchange(before_restore_, nullptr);
  if (!before) return;
  const auto put_back = [](const char* what, auto&& step) {
    try {
      step();
    } catch (const std::exception& error) {
      log_warning(concat("[trainer] ", what, " could not be put back as before the checkpoint: ", one_line(error)));
    }
  };
  progress_ = {};
  loaded_.reset();
  put_back("the module", [&] {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, value] : before->model) tensor.copy_(value);
  });
  if (data_ && !before->data.empty()) put_back("the data module", [&] { data_->load_state_dict(before->data); });
  if (auto* scaler = fabric_->grad_scaler(); scaler && !before->scaler.empty())
    put_back("the loss scaler", [&] { scaler->load_state_dict(before->scaler); });
  for (const auto& [callback, state] : before->callbacks)
    put_back("a callback", [&, &c = callback, &old = state] { c->load_state_dict(old); });
  if (before->loader) put_back("the loader", [&] { before->loader->load_state_dict(before->loader_state); });
  put_back("the random generators", [&] {
    before->rng.restore();
    if (before->device_rng.defined()) fabric_->accelerator().set_rng_state(fabric_->device(), before->device_rng);
  });
}

void Run::restore_together(const std::function<void()>& step) {
  if (fabric_->world_size() == 1)
    step();
  else
    together(fabric_->strategy().group(), step);
}

StateDict Run::rng_state() const {
  StateDict rng{{"cpu", bytes_of(RngState::capture().cpu)}};
  if (!fabric_->device().is_cpu()) rng["device"] = bytes_of(fabric_->accelerator().rng_state(fabric_->device()));
  return rng;
}

StateList Run::log_positions() const {
  StateList positions;
  if (fabric_->is_global_zero())
    for (const auto& logger : loggers_) positions.emplace_back(logger->position());
  return positions;
}

StateDict Run::checkpoint(bool weights_only) {
  StateDict all{{"epoch", progress_.epoch},
                {"global_step", progress_.global_step},
                {"levin_version", std::string(kVersion)},
                {"model", module_state_dict(*module_)}};
  if (!module_->hparams.empty()) all["hyper_parameters"] = module_->hparams;
  if (data_) {
    if (!data_->hparams.empty()) all["datamodule_hyper_parameters"] = data_->hparams;
    if (auto state = data_->state_dict(); !state.empty()) all["datamodule"] = std::move(state);
  }
  if (!weights_only) {
    StateList optimizers, schedulers;
    for (const auto& optimizer : optimizers_) optimizers.emplace_back(optimizer.state_dict());
    for (const auto& config : schedulers_) schedulers.emplace_back(config.scheduler.state_dict());
    StateDict callbacks;
    for (const auto& callback : callbacks_)
      if (auto state = callback->state_dict(); !state.empty()) callbacks[callback->state_key()] = std::move(state);

    StateDict mine{{"rng", rng_before_validation_ ? *rng_before_validation_ : rng_state()},
                   {"metrics", train_log_.state_dict()}};
    StateDict values;
    for (const auto& [name, value] : published_.callback) values[name] = metric_number(value);
    mine["callback_metrics"] = std::move(values);
    StateList ranks;
    if (fabric_->world_size() > 1) {
      for (const auto& text : gather_strings(fabric_->strategy().group(), text_of(mine)))
        ranks.emplace_back(state_of(text));
    } else {
      ranks.emplace_back(std::move(mine));
    }

    all["optimizers"] = std::move(optimizers);
    all["schedulers"] = std::move(schedulers);
    if (auto* scaler = fabric_->grad_scaler()) all["scaler"] = scaler->state_dict();
    StateList seen;
    for (const auto batches : val_data_.seen) seen.emplace_back(batches);
    all["loops"] = StateDict{{"fit", progress_state(progress_, batch_stepped_)},
                             {"validation", StateDict{{"seen", std::move(seen)}}}};
    if (!train_data_.loaders.empty()) {
      const auto& source = *train_data_.loaders.front();
      if (source.has_state()) all["train_loader"] = source.state_dict();
    }
    all["callbacks"] = std::move(callbacks);
    all["loggers"] = logs_before_validation_ ? *logs_before_validation_ : log_positions();
    all["ranks"] = std::move(ranks);
  }
  const auto* site = site_;
  call(
      Hook::kSaveCheckpoint, [&](Callback& c) { c.on_save_checkpoint(*this, all); },
      [&] { module_->on_save_checkpoint(all); });
  site_ = site;
  return all;
}

void Run::write_checkpoint(const std::filesystem::path& path, bool weights_only) {
  const auto time = span(Action::kSaveCheckpoint);
  const auto all = checkpoint(weights_only);
  auto* shards = fabric_->strategy().shards();
  if (!shards) {
    fabric_->save(path.string(), all);
    return;
  }
  const auto targets = targets_in_checkpoint(*shards, *module_, optimizers_, callbacks_);
  levin::save_checkpoint(path, all, {.world_size = fabric_->world_size(), .shards = shards, .targets = &targets});
}

void Run::save_checkpoint(const std::filesystem::path& path, bool weights_only) {
  save_checkpoint(path, weights_only, {});
}

void Run::save_checkpoint(const std::filesystem::path& path, bool weights_only, std::function<void()> then) {
  LEVIN_CHECK(module_, "[trainer.save_checkpoint] nothing is running");
  if (inside_batch_ || window_open_) {
    waiting_.push_back({path, weights_only, std::move(then)});
    return;
  }
  write_checkpoint(path, weights_only);
  if (then) then();
}

void Run::write_waiting_checkpoints() {
  if (waiting_.empty() || window_open_) [[likely]]
    return;
  for (auto& waiting : std::exchange(waiting_, {})) {
    write_checkpoint(waiting.path, waiting.weights_only);
    if (waiting.then) waiting.then();
  }
}

std::filesystem::path Run::hpc_path(int64_t number) const {
  return plan_.root_dir / concat("hpc_ckpt_", number, ".ckpt");
}

std::filesystem::path Run::find_checkpoint(const std::string& asked, bool fit) {
  namespace fs = std::filesystem;
  if (asked.empty() || asked == "hpc") {
    // A cluster that has started the job again wants it to go on.
    const bool restarted = asked.empty();
    if (restarted && (!fit || !slurm_job_to_requeue())) return {};
    const auto newest = newest_hpc_number(plan_.root_dir);
    if (restarted && !newest) return {};
    LEVIN_CHECK(newest, "[trainer] ckpt_path \"hpc\": there is no hpc_ckpt_N.ckpt in ", plan_.root_dir.string());
    const auto path = hpc_path(*newest);
    if (restarted) log_info(concat("[trainer] this job was started again: it goes on from ", path.string()));
    return path;
  }
  if (asked == "best") {
    const auto best = best_checkpoint(callbacks_);
    LEVIN_CHECK(best, "[trainer] ckpt_path \"best\": no ModelCheckpoint of this trainer has saved anything yet");
    return *best;
  }
  if (asked == "last") {
    const auto last = last_checkpoint(callbacks_, *this);
    if (!last)
      log_info("[trainer] ckpt_path \"last\": there is no checkpoint yet, so the run starts from the beginning");
    return last.value_or(fs::path());
  }
  LEVIN_CHECK(fs::exists(asked), "[trainer] ckpt_path \"", asked,
              "\" does not exist; give a checkpoint folder, \"last\", \"best\" or \"hpc\"");
  return asked;
}

void Run::restore_model(bool fit) {
  if (ckpt_path_.empty()) return;
  fabric_->barrier("load a checkpoint");
  auto* shards = fabric_->strategy().shards();
  // A run that only evaluates has no optimizers to take parts of their states, which may be large.
  const std::vector<std::string> skip = fit ? std::vector<std::string>() : std::vector<std::string>{"optimizers"};
  if (shards)
    loaded_ =
        load_checkpoint(ckpt_path_, targets_in_checkpoint(*shards, *module_, optimizers_, callbacks_), {.skip = skip});
  else
    restore_together([&] { loaded_ = load_checkpoint(ckpt_path_); });
  if (fit) {
    LEVIN_CHECK(loaded_->contains("loops"), "[trainer.fit] ", ckpt_path_.string(),
                " holds weights only, so no run can go on from it; load it into the module before fit");
    const auto epoch = loaded_->at("epoch").to_int();
    LEVIN_CHECK(plan_.max_epochs < 0 || epoch <= plan_.max_epochs, "[trainer.fit] ", ckpt_path_.string(),
                " is at epoch ", epoch, ", which is beyond max_epochs ", plan_.max_epochs);
  }
  before_restore_ = std::make_shared<BeforeRestore>(*this);
  restore_together([&] {
    if (data_)
      if (const auto* state = loaded_->find("datamodule")) data_->load_state_dict(state->to_dict());
  });
  site_ = &kNoLogging;
  module_->on_load_checkpoint(*loaded_);
  call(Hook::kLoadCheckpoint, [&](Callback& c) { c.on_load_checkpoint(*this, *loaded_); });
  restore_together([&] { load_module_state_dict(*module_, loaded_->at("model").to_dict(), {.shards = shards}); });
  loaded_->erase("model");  // its memory is that of the old weights now
  log_info(concat("[trainer] ", fit ? "goes on from " : "weights from ", ckpt_path_.string()));
  if (!fit) {
    loaded_.reset();
    before_restore_.reset();
    return;
  }
  const auto& states = loaded_->at("callbacks").to_dict();
  size_t found = 0;
  restore_together([&] {
    for (const auto& callback : callbacks_)
      if (const auto* state = states.find(callback->state_key())) {
        callback->load_state_dict(state->to_dict());
        ++found;
      }
  });
  if (found < states.size())
    log_warning(concat("[trainer] the checkpoint holds the state of ", states.size() - found,
                       " callbacks that this trainer does not have"));
}

void Run::restore_training() {
  if (!loaded_) return;
  restore_together([&] {
    const auto& optimizers = loaded_->at("optimizers").to_list();
    const auto& schedulers = loaded_->at("schedulers").to_list();
    LEVIN_CHECK(optimizers.size() == optimizers_.size(), "[trainer.fit] the checkpoint has ", optimizers.size(),
                " optimizers, the module ", optimizers_.size());
    LEVIN_CHECK(schedulers.size() == schedulers_.size(), "[trainer.fit] the checkpoint has ", schedulers.size(),
                " schedulers, the module ", schedulers_.size());
    if (auto* scaler = fabric_->grad_scaler())
      if (const auto* state = loaded_->find("scaler")) scaler->load_state_dict(state->to_dict());
    for (size_t i = 0; i < optimizers.size(); ++i) optimizers_[i].load_state_dict(optimizers[i].to_dict());
    for (size_t i = 0; i < schedulers.size(); ++i) schedulers_[i].scheduler.load_state_dict(schedulers[i].to_dict());
    const auto& fit = loaded_->at("loops").to_dict().at("fit").to_dict();
    progress_ = progress_from(fit);
    batch_stepped_ = fit.at("batch_stepped").to_bool();
  });
}

void Run::restore_position() {
  const auto& ranks = loaded_->at("ranks").to_list();
  const auto rank = static_cast<size_t>(fabric_->global_rank());
  restore_together([&] {
    auto& source = *train_data_.loaders.front();
    if (progress_.batch > 0 && !progress_.closing_epoch) {
      if (const auto* state = loaded_->find("train_loader"); state && source.has_state()) {
        before_restore_->loader_state = source.state_dict();
        before_restore_->loader = train_data_.loaders.front();
        source.load_state_dict(state->to_dict());
      } else {
        source.skip_to(progress_.epoch, progress_.batch);
      }
    }
    const auto& seen = loaded_->at("loops").to_dict().at("validation").to_dict().at("seen").to_list();
    for (size_t i = 0; i < std::min(seen.size(), val_data_.seen.size()); ++i) val_data_.seen[i] = seen[i].to_int();
    if (rank >= ranks.size()) return;
    const auto& mine = ranks[rank].to_dict();
    train_log_.load_state_dict(mine.at("metrics").to_dict());
    for (const auto& [name, value] : mine.at("callback_metrics").to_dict())
      published_.callback[name] = value.to_double();
    const auto& rng = mine.at("rng").to_dict();
    RngState state;
    state.cpu = bytes_to_tensor(rng.at("cpu").to_string());
    state.restore();
    if (const auto* device = rng.find("device"); device && !fabric_->device().is_cpu())
      fabric_->accelerator().set_rng_state(fabric_->device(), bytes_to_tensor(device->to_string()));
  });
  if (ranks.size() != static_cast<size_t>(fabric_->world_size()))
    log_warning(concat("[trainer] the checkpoint is of ", ranks.size(), " ranks and this run has ",
                       fabric_->world_size(), ": random numbers and metrics of the epoch under way will differ"));
  // Last, since rows that are dropped do not come back.
  restore_together([&] {
    const auto& loggers = loaded_->at("loggers").to_list();
    if (!fabric_->is_global_zero()) return;
    for (size_t i = 0; has_old_logs_ && i < std::min(loggers.size(), loggers_.size()); ++i)
      loggers_[i]->resume(loggers[i].to_dict());
    log_hparams();
  });
  before_restore_.reset();
  // The tensors of the checkpoint are not needed any more.
  loaded_ = StateDict{};
}

void Run::end_by_signal(int signal) {
  const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
  const bool sane = fitting_ && stage_ != Stage::kSanity;
  auto where = sane ? concat("[trainer] ", name, " in epoch ", progress_.epoch, " after batch ", progress_.batch)
                    : concat("[trainer] ", name, " in ", fitting_ ? "the sanity check" : stage_name(stage_));
  const bool training = sane && plan_.fast_dev_run == 0 && !plan_.barebones;
  if (training && (plan_.checkpoints || signal != SIGINT)) {
    const auto path = signal == SIGINT ? interrupted_path(callbacks_, *this)
                                       : hpc_path(newest_hpc_number(plan_.root_dir).value_or(0) + 1);
    stage_ = Stage::kTrain;
    write_checkpoint(path, /*weights_only=*/false);
    where += concat("; go on from there with ckpt_path \"", path.string(), "\"");
    if (signal == SIGUSR1)
      if (const auto job = slurm_job_to_requeue(); job && fabric_->is_global_zero()) {
        const int status = std::system(("scontrol requeue " + *job).c_str());
        where +=
            status == 0 ? concat("; job ", *job, " is queued again") : concat("; scontrol requeue ", *job, " failed");
      }
  }
  SignalFlags::clear();
  throw Interrupted(where, signal);
}

void Run::check_late_signal(bool together) {
  int64_t signal = SignalFlags::pending();
  if (together && fabric_->world_size() > 1) {
    const auto vote = at::tensor({signal}, at::kLong).to(fabric_->device());
    signal = fabric_->all_reduce(vote, "max").item<int64_t>();
  }
  SignalFlags::clear();
  if (signal == SIGINT || signal == SIGTERM)
    throw Interrupted(concat("[trainer] ", signal == SIGINT ? "Ctrl-C" : "SIGTERM", " at the end of the run"),
                      static_cast<int>(signal));
}

}  // namespace levin::detail
