// Setting a run up: ranks, callbacks, loggers, optimizers.
#include "levin/trainer/run/run.h"

#include <algorithm>
#include <fstream>

#include <ATen/Context.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/manual_optimizer.h"
#include "levin/trainer/run/same_run.h"

namespace levin::detail {
namespace {

/// The command line of this process.
std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::vector<CallbackRef> all_callbacks(const TrainerOptions& asked, TrainerPlan& plan) {
  auto callbacks = asked.callbacks;
  for (const auto& callback : callbacks) LEVIN_CHECK(callback.get(), "[trainer] a callback is empty");
  add_default_callbacks(asked, plan, callbacks);
  return callbacks;
}

std::shared_ptr<Profiler> profiler_of(const ProfilerChoice& choice) {
  if (choice.profiler() || !choice.is_set()) return choice.profiler();
  return make_profiler(choice.name());
}

void set_global_options(const TrainerPlan& plan) {
  auto& context = at::globalContext();
  if (plan.deterministic.is_set()) {
    context.setDeterministicAlgorithms(plan.deterministic.is_on(), plan.deterministic.only_warns());
    if (plan.deterministic.is_on()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  }
  if (plan.benchmark) context.setBenchmarkCuDNN(*plan.benchmark);
}

}  // namespace

Run::Run(TrainerOptions asked)
    : plan(levin::resolve_trainer(asked, cuda_accelerator().device_count())),
      hooks(all_callbacks(asked, plan), profiler_of(asked.profiler)),
      logs{.loggers = make_loggers(asked, plan)},
      resolved_(plan) {
  fabric = std::make_unique<Fabric>(plan.fabric);
}

void Run::launch(const Args* args) {
  if (args) return fabric->launch(*args);
  if (fabric->plan().world_size() == 1) return fabric->launch();
  auto words = own_command_line();
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  fabric->launch(static_cast<int>(argv.size()), argv.data());
}

void Run::begin(TrainModuleBase& module, DataModuleBase* data_module, std::string_view stage,
                const std::string& ckpt_path) {
  model = {.module = &module, .data = data_module};
  module.set_context(&context);
  plan = resolved_;
  metrics = {};
  checkpoints = {};
  begin_watch(*this);
  compiled.reset();
  set_global_options(plan);
  hooks.begin(module.configure_callbacks());
  if (state.fitting) check_same_run(*this);

  logs.folder.clear();
  logs.folder = fabric->broadcast(log_dir(*this).string());
  checkpoints.ckpt_path = find_checkpoint(*this, ckpt_path, state.fitting);
  if (state.fitting) reopen_logs(*this);
  if (auto* profiler = hooks.profiler()) {
    profiler->setup(std::string(stage), fabric->global_rank(), logs.folder);
    hooks.register_actions(module.name(), fabric->strategy().name());
  }

  // Downloads happen on one rank of each node while the others wait.
  fabric->rank_zero_first(
      [&] {
        if (fabric->local_rank() != 0) return;
        if (data_module) data_module->prepare_data();
        module.prepare_data();
      },
      /*local=*/true);
  if (data_module) data_module->setup(stage);
  call<Hook::setup>(*this, stage);
  module.configure_model();
}

void Run::make_optimizers() {
  const auto configured = model.module->configure_optimizers();
  if (configured.empty())
    log_warning("[trainer] configure_optimizers returned nothing: the module runs, but nothing is trained");
  const bool manual = !model.module->automatic_optimization;
  LEVIN_CHECK(manual || configured.configs().size() <= 1, "[trainer] configure_optimizers returned ",
              configured.configs().size(),
              " optimizers: several need manual optimization (automatic_optimization = false in the module)");
  if (manual) {
    LEVIN_CHECK(plan.accumulate == 1, "[trainer] accumulate_grad_batches ", plan.accumulate,
                " does not go with manual optimization; step every n-th batch in training_step");
    LEVIN_CHECK(
        plan.clip_val <= 0,
        "[trainer] gradient_clip_val does not go with manual optimization; call clip_gradients in training_step");
  }
  for (const auto& config : configured.configs()) {
    auto optimizer = fabric->setup_optimizers(config.optimizer);
    if (manual) optimizer = for_manual_optimization(std::move(optimizer), *this);
    model.optimizers.push_back(std::move(optimizer));
    if (!config.lr_scheduler) continue;
    const auto& scheduler = *config.lr_scheduler;
    LEVIN_CHECK(scheduler.scheduler, "[trainer] configure_optimizers gave an empty scheduler");
    static const std::vector<std::string> kIntervals{"epoch", "step"};
    if (std::find(kIntervals.begin(), kIntervals.end(), scheduler.interval) == kIntervals.end())
      fail_unknown("trainer", "scheduler interval", scheduler.interval, kIntervals);
    LEVIN_CHECK(scheduler.frequency >= 1, "[trainer] scheduler frequency ", scheduler.frequency,
                " is not allowed (1 or more)");
    LEVIN_CHECK(manual || !scheduler.scheduler.needs_metric() || !scheduler.monitor.empty(), "[trainer] ",
                scheduler.scheduler.name(), " follows a metric: name it by .monitor in configure_optimizers");
    model.schedulers.push_back(scheduler);
  }
}

void Run::print_plan() const {
  if (plan.barebones) return;
  auto shown = plan;
  shown.devices = fabric->plan();
  log_info(concat("[trainer] ", shown.to_string()));
}

}  // namespace levin::detail
