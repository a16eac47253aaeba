#include "levin/trainer/run/rollback.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/distributed/failure.h"
#include "levin/trainer/nonfinite.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

/// What schedulers and the user have set.
class Hypers {
 public:
  explicit Hypers(const Optimizer& optimizer) : optimizer_(optimizer) {
    for (size_t group = 0; group < optimizer.num_groups(); ++group)
      for (const auto& name : optimizer.impl()->hyper_names())
        if (const auto* value = optimizer.impl()->find_hyper(group, name)) values_.push_back({group, name, *value});
  }
  void put_back() const {
    for (const auto& [group, name, value] : values_)
      if (auto* place = optimizer_.impl()->find_hyper(group, name)) *place = value;
  }

 private:
  struct Value {
    size_t group;
    std::string name;
    double value;
  };
  Optimizer optimizer_;
  std::vector<Value> values_;
};

/// Every rank runs a step, or all throw.
void on_all_ranks(Run& run, const std::function<void()>& step) {
  if (run.fabric->world_size() == 1)
    step();
  else
    together(run.fabric->strategy().group(), step);
}

/// An Error on all ranks where it cannot be loaded; nothing is changed then.
StateDict read_checkpoint(Run& run, const std::filesystem::path& path) {
  auto& fabric = *run.fabric;
  fabric.barrier("go back to a checkpoint");
  auto* shards = fabric.strategy().shards();
  StateDict loaded;
  if (shards)
    loaded = load_checkpoint(path, targets_in_checkpoint(run, *shards), {.format = fabric.checkpoint_format()});
  else
    on_all_ranks(run, [&] { loaded = load_checkpoint(path, {.format = fabric.checkpoint_format()}); });
  on_all_ranks(run, [&] {
    const auto& states = loaded.at("optimizers").to_list();
    LEVIN_CHECK(states.size() == run.model.optimizers.size(), "\"", path.string(), "\" has ", states.size(),
                " optimizers, the run ", run.model.optimizers.size());
    for (size_t i = 0; i < states.size(); ++i)
      (void)run.model.optimizers[i].impl()->check_state_dict(states[i].to_dict());
  });
  return loaded;
}

void take(Run& run, StateDict& loaded) {
  if (const auto* model = loaded.find(kResumeModel)) {
    StateValue own = *model;
    loaded["model"] = std::move(own);
    loaded.erase(kResumeModel);
  }
  auto* shards = run.fabric->strategy().shards();
  run.state.place.set_site(kNoLogging);
  run.model.module->on_load_checkpoint(loaded);
  for (const auto& callback : run.hooks.callbacks()) callback->on_rollback(run.context, loaded);
  on_all_ranks(run,
               [&] { load_module_state_dict(*run.model.module, loaded.at("model").to_dict(), {.shards = shards}); });
  on_all_ranks(run, [&] {
    const auto& states = loaded.at("optimizers").to_list();
    for (size_t i = 0; i < states.size(); ++i) {
      auto& optimizer = run.model.optimizers[i];
      const Hypers hypers(optimizer);
      optimizer.load_state_dict(states[i].to_dict());
      hypers.put_back();
      optimizer.zero_grad();
    }
    if (const auto* state = loaded.find(kFp8State)) run.fabric->fp8_state().load_state_dict(state->to_dict());
  });
}

}  // namespace

void roll_back(Run& run, int64_t epoch, int64_t batch, const char* what) {
  const auto& progress = run.state.progress;
  auto& good = run.checkpoints.good;
  const auto found = concat("[trainer.fit] ", what, " nan or inf in epoch ", epoch, ", batch ", batch);
  if (run.state.rollbacks >= run.plan.max_rollbacks)
    throw NonFiniteError(
        epoch, batch,
        concat(found, ", after the run has gone back ", run.state.rollbacks,
               " times (max_rollbacks); lower the learning rate, clip gradients, or find the operation "
               "with detect_anomaly = true"));
  // Whatever was written since is of a run that was not good.
  const int64_t before = progress.total_batches - (epoch == progress.epoch ? progress.batch - batch : 0);
  std::erase_if(good, [&](const auto& one) { return one.total_batches > before; });
  while (!good.empty()) {
    const auto path = good.back().path;
    StateDict loaded;
    // Deleted since, which is no damage: rank 0's folder counts.
    const bool is_there = run.fabric->broadcast(int64_t{std::filesystem::exists(path)}) != 0;
    try {
      if (is_there) loaded = read_checkpoint(run, path);
    } catch (const Error& error) {
      if (auto* failures = run.fabric->strategy().group().failures(); failures && failures->failed()) throw;
      log_warning(concat("passed over: ", one_line(error)));
      loaded = {};
    }
    if (loaded.empty()) {
      good.pop_back();
      continue;
    }
    take(run, loaded);
    run.compiled.reset();
    run.loss_watch.forget();
    ++run.state.rollbacks;
    log_warning(concat("[trainer] ", what, " nan or inf in epoch ", epoch, ", batch ", batch, ": the run goes back to ",
                       path.string(), " (epoch ", loaded.at("epoch").to_int(), ", step ",
                       loaded.at("global_step").to_int(), ") and on with the next batch; return ", run.state.rollbacks,
                       " of ", run.plan.max_rollbacks));
    return;
  }
  throw NonFiniteError(epoch, batch,
                       concat(found,
                              ", and on_nonfinite \"rollback\" finds no checkpoint of this run to go back to; "
                              "write them more often, as ModelCheckpoint({.every_n_train_steps = 100}) does"));
}

}  // namespace levin::detail
