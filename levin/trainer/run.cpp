// Setting a run up: ranks, callbacks, loggers, data, optimizers.
#include "levin/trainer/run.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include <ATen/Context.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/optim/forwarding.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/loops/together.h"

namespace levin::detail {
namespace {

using Kind = LogSite::Kind;

constexpr std::array<LogSite, static_cast<size_t>(Hook::kCount)> kSites{{
    {"setup", Kind::kRefused},
    {"teardown", Kind::kRefused},
    {"on_fit_start", Kind::kRefused},
    {"on_fit_end", Kind::kRefused},
    {"on_sanity_check_start", Kind::kRefused},
    {"on_sanity_check_end", Kind::kRefused},
    {"on_train_start", Kind::kEpoch},
    {"on_train_end", Kind::kRefused},
    {"on_train_epoch_start", Kind::kEpoch},
    {"on_train_epoch_end", Kind::kEpoch},
    {"on_train_batch_start", Kind::kTrainStep},
    {"on_train_batch_end", Kind::kTrainStep},
    {"on_before_zero_grad", Kind::kTrainStep},
    {"on_before_backward", Kind::kTrainStep},
    {"on_after_backward", Kind::kTrainStep},
    {"on_before_optimizer_step", Kind::kTrainStep},
    {"on_validation_start", Kind::kEpoch},
    {"on_validation_end", Kind::kRefused},
    {"on_validation_epoch_start", Kind::kEpoch},
    {"on_validation_epoch_end", Kind::kEpoch},
    {"on_validation_batch_start", Kind::kEvalStep},
    {"on_validation_batch_end", Kind::kEvalStep},
    {"on_test_start", Kind::kEpoch},
    {"on_test_end", Kind::kRefused},
    {"on_test_epoch_start", Kind::kEpoch},
    {"on_test_epoch_end", Kind::kEpoch},
    {"on_test_batch_start", Kind::kEvalStep},
    {"on_test_batch_end", Kind::kEvalStep},
    {"on_predict_start", Kind::kRefused},
    {"on_predict_end", Kind::kRefused},
    {"on_predict_epoch_start", Kind::kRefused},
    {"on_predict_epoch_end", Kind::kRefused},
    {"on_predict_batch_start", Kind::kRefused},
    {"on_predict_batch_end", Kind::kRefused},
    {"on_save_checkpoint", Kind::kRefused},
    {"on_load_checkpoint", Kind::kRefused},
    {"on_exception", Kind::kRefused},
}};
constexpr LogSite kTrainingStep{"training_step", Kind::kTrainStep};
constexpr LogSite kValidationStep{"validation_step", Kind::kEvalStep};
constexpr LogSite kTestStep{"test_step", Kind::kEvalStep};
constexpr LogSite kPredictStep{"predict_step", Kind::kRefused};

/// Counts the steps of an optimizer that training_step drives itself, and calls the hooks around them.
class ManualOptimizer final : public optim::ForwardingOptimizer {
 public:
  ManualOptimizer(Optimizer inner, Run& run) : ForwardingOptimizer(std::move(inner)), run_(run) {}

  void step() override {
    before();
    inner().step();
    ++run_.progress_.global_step;
  }
  Tensor step_with(const std::function<Tensor()>& closure) override {
    auto loss = inner().step([&] {
      auto value = closure();
      before();
      return value;
    });
    ++run_.progress_.global_step;
    return loss;
  }

 private:
  void before() {
    const auto* site = run_.site_;
    if (run_.fabric().grad_scaler()) run_.fabric().unscale_gradients(inner());
    run_.call(
        Hook::kBeforeOptimizerStep, [&](Callback& c) { c.on_before_optimizer_step(run_, inner()); },
        [&] { run_.module().on_before_optimizer_step(inner()); });
    run_.site_ = site;
  }

  Run& run_;
};

/// The smallest fraction of `size` batches that is a whole batch, in few digits.
double least_share(int64_t size) {
  double digits = 1000;
  while (digits < 100 * static_cast<double>(size)) digits *= 10;
  return std::ceil(digits / static_cast<double>(size)) / digits;
}

int64_t limited(const char* option, const Limit& limit, int64_t size) {
  if (!limit.is_share()) return std::min(size, limit.count());
  if (limit.is_zero()) return 0;
  LEVIN_CHECK(size > 0, "[trainer] the loader that ", option, " ", limit.to_string(),
              " is about has no batches: its dataset is empty, or drop_last is set and it has fewer samples than one "
              "batch; give it more samples or a smaller batch_size");
  const auto count = static_cast<int64_t>(std::floor(static_cast<double>(size) * limit.share()));
  LEVIN_CHECK(count > 0, "[trainer] ", option, " ", limit.to_string(), " of ", size, size == 1 ? " batch" : " batches",
              " is less than one batch; write ", least_share(size), " or more, or a number of batches such as 1");
  return count;
}

/// The command line of this process.
std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace

Optimizer as_set_up(const Optimizer& optimizer) {
  const auto* manual = dynamic_cast<const ManualOptimizer*>(optimizer.impl().get());
  return manual ? manual->inner() : optimizer;
}

const LogSite kNoLogging{"this place", Kind::kRefused};
const LogSite kTransferSite{"the hooks of batch transfer", Kind::kRefused};

const LogSite& hook_site(Hook hook) {
  return kSites[static_cast<size_t>(hook)];
}
const LogSite& step_site(Stage stage) {
  switch (stage) {
    case Stage::kTrain:
      return kTrainingStep;
    case Stage::kTest:
      return kTestStep;
    case Stage::kPredict:
      return kPredictStep;
    default:
      return kValidationStep;
  }
}

Run::Run(TrainerOptions asked)
    : plan_(levin::resolve_trainer(asked, cuda_accelerator().device_count())), asked_(std::move(asked)) {
  max_epochs_ = plan_.max_epochs;
  profiler_ = asked_.profiler.profiler();
  if (!profiler_ && asked_.profiler.is_set()) profiler_ = make_profiler(asked_.profiler.name());
  collect_callbacks();
  collect_loggers();
  fabric_ = std::make_unique<Fabric>(plan_.fabric);
}

Run::~Run() {
  if (module_ && module_->has_trainer()) module_->set_context(nullptr);
}

void Run::launch(const Args* args) {
  if (args) return fabric_->launch(*args);
  if (fabric_->plan().world_size() == 1) return fabric_->launch();
  auto words = own_command_line();
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  fabric_->launch(static_cast<int>(argv.size()), argv.data());
}

namespace {

std::vector<CallbackRef> in_order(std::vector<CallbackRef> callbacks) {
  std::stable_sort(callbacks.begin(), callbacks.end(), [](const CallbackRef& a, const CallbackRef& b) {
    // A monitor keeps its place among the ordinary ones, except at the end of an epoch.
    const auto rank = [](const CallbackRef& c) {
      const auto order = c->order();
      return order == CallbackOrder::kTuner ? 0 : order == CallbackOrder::kCheckpoint ? 2 : 1;
    };
    return rank(a) < rank(b);
  });
  std::set<std::string> keys;
  for (const auto& callback : callbacks)
    if (!callback->state_dict().empty())
      LEVIN_CHECK(keys.insert(callback->state_key()).second, "[trainer] two callbacks keep a state under the key \"",
                  callback->state_key(), "\"; give them different options, or override state_key()");
  return callbacks;
}

}  // namespace

void Run::collect_callbacks() {
  base_callbacks_ = asked_.callbacks;
  for (const auto& callback : base_callbacks_) LEVIN_CHECK(callback.get(), "[trainer] a callback is empty");
  add_default_callbacks(asked_, plan_, base_callbacks_);
  callbacks_ = in_order(base_callbacks_);
}

void Run::begin(TrainModuleBase& module, DataModuleBase* data, std::string_view stage, const std::string& ckpt_path) {
  doing_ = {};
  at_.reset();
  loss_watch_ = {};
  before_restore_.reset();
  launch(nullptr);
  if (module_ && module_ != &module && module_->has_trainer()) module_->set_context(nullptr);
  module_ = &module;
  data_ = data;
  module.set_context(this);
  site_ = &kNoLogging;
  wrapped_.reset();
  optimizers_.clear();
  schedulers_.clear();
  waiting_.clear();
  loaded_.reset();
  should_stop_ = stop_requested_ = false;
  forward_only_ = inside_batch_ = in_epoch_end_ = window_open_ = false;
  batch_stepped_ = true;
  accumulate_ = plan_.accumulate;
  train_data_ = val_data_ = test_data_ = predict_data_ = {};
  published_ = {};
  train_log_.clear();
  val_log_.clear();
  test_log_.clear();
  plan_.max_epochs = max_epochs_;

  auto& context = at::globalContext();
  if (plan_.deterministic.is_set()) {
    context.setDeterministicAlgorithms(plan_.deterministic.is_on(), plan_.deterministic.only_warns());
    if (plan_.deterministic.is_on()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  }
  if (plan_.benchmark) context.setBenchmarkCuDNN(*plan_.benchmark);

  callbacks_ = base_callbacks_;
  for (auto& own : module.configure_callbacks()) {
    std::erase_if(callbacks_, [&](const CallbackRef& c) { return typeid(*c.get()) == typeid(*own.get()); });
    callbacks_.push_back(own);
  }
  callbacks_ = in_order(std::move(callbacks_));
  listeners_.clear();
  for (const auto& callback : callbacks_) listeners_.push_back(callback.get().get());

  log_dir_.clear();
  log_dir_ = fabric_->broadcast(log_dir().string());
  ckpt_path_ = find_checkpoint(ckpt_path, fitting_);
  if (fitting_) reopen_logs();
  register_actions(stage);

  // Downloads happen on one rank of each node while the others wait.
  fabric_->rank_zero_first(
      [&] {
        if (fabric_->local_rank() != 0) return;
        if (data_) data_->prepare_data();
        module.prepare_data();
      },
      /*local=*/true);
  if (data_) data_->setup(stage);
  call(
      Hook::kSetup, [&](Callback& c) { c.setup(*this, stage); }, [&] { module.setup(stage); });
  module.configure_model();
}

void Run::register_actions(std::string_view stage) {
  if (!profiler_) return;
  profiler_->setup(std::string(stage), fabric_->global_rank(), log_dir_);
  const auto module = concat("[TrainModule]", module_->name(), ".");
  const auto strategy = concat("[Strategy]", fabric_->strategy().name(), ".");
  const std::array<std::string, static_cast<size_t>(Action::kCount)> names{"run_training_epoch",
                                                                           "run_training_batch",
                                                                           "[TrainLoop].train_dataloader_next",
                                                                           "[EvalLoop].dataloader_next",
                                                                           strategy + "batch_to_device",
                                                                           strategy + "training_step",
                                                                           strategy + "validation_step",
                                                                           strategy + "test_step",
                                                                           strategy + "predict_step",
                                                                           module + "optimizer_zero_grad",
                                                                           strategy + "backward",
                                                                           module + "optimizer_step",
                                                                           module + "configure_gradient_clipping",
                                                                           module + "lr_scheduler_step",
                                                                           "save_checkpoint",
                                                                           "run_validation"};
  for (size_t i = 0; i < names.size(); ++i) actions_[i] = profiler_->register_action(names[i]);
  for (size_t hook = 0; hook < kSites.size(); ++hook) {
    module_actions_[hook] = profiler_->register_action(module + kSites[hook].hook);
    auto& actions = callback_actions_[hook];
    actions.assign(callbacks_.size(), std::nullopt);
    for (size_t i = 0; i < callbacks_.size(); ++i)
      if (callbacks_[i].overrides(static_cast<Hook>(hook)))
        actions[i] =
            profiler_->register_action(concat("[Callback]", callbacks_[i]->state_key(), ".", kSites[hook].hook));
  }
}

void Run::make_optimizers() {
  const auto configured = module_->configure_optimizers();
  if (configured.empty())
    log_warning("[trainer] configure_optimizers returned nothing: the module runs, but nothing is trained");
  const bool manual = !module_->automatic_optimization;
  LEVIN_CHECK(manual || configured.configs().size() <= 1, "[trainer] configure_optimizers returned ",
              configured.configs().size(),
              " optimizers: several need manual optimization (automatic_optimization = false in the module)");
  if (manual) {
    LEVIN_CHECK(plan_.accumulate == 1, "[trainer] accumulate_grad_batches ", plan_.accumulate,
                " does not go with manual optimization; step every n-th batch in training_step");
    LEVIN_CHECK(
        plan_.clip_val <= 0,
        "[trainer] gradient_clip_val does not go with manual optimization; call clip_gradients in training_step");
  }
  for (const auto& config : configured.configs()) {
    auto optimizer = fabric_->setup_optimizers(config.optimizer);
    if (manual) optimizer = Optimizer(std::make_shared<ManualOptimizer>(std::move(optimizer), *this));
    optimizers_.push_back(std::move(optimizer));
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
    schedulers_.push_back(scheduler);
  }
}

void* Run::next_batch(BatchSource& source, const StepInfo& at) {
  at_ = at;
  doing_ = {"the loader"};
  void* batch = nullptr;
  {
    const auto time = span(stage_ == Stage::kTrain ? Action::kNextTrainBatch : Action::kNextEvalBatch);
    batch = source.next();
  }
  if (!batch) return nullptr;
  site_ = &kTransferSite;
  doing_ = {"transfer_batch_to_device"};
  const auto time = span(Action::kTransfer);
  module_->any_transfer(batch, fabric_->device(), fabric_->plan().precision.inputs, at);
  return batch;
}

AnyLoaders Run::prepared(const AnyLoaders& loaders, bool training) {
  AnyLoaders result;
  for (auto source : loaders) {
    if (plan_.overfits && source->shuffles()) {
      if (auto sequential = source->sequential()) source = sequential;
      log_warning("[trainer] overfit_batches needs the same batches in every epoch, so this loader is not shuffled");
    }
    if (plan_.use_distributed_sampler && fabric_->world_size() > 1) {
      // Where the parameters are divided every forward gathers them: ranks must have as many batches as each other, and
      // some samples are evaluated twice for that.
      const bool together = training || fabric_->strategy().shards();
      if (auto own = source->distributed(fabric_->global_rank(), fabric_->world_size(), /*repeat=*/together)) {
        // A rank without any batch could not take part in the reduction of metrics; then some samples are repeated.
        auto least = at::scalar_tensor(own->size().value_or(1), at::kLong).to(fabric_->device());
        if (!training && fabric_->all_reduce(least, "min").item<int64_t>() == 0)
          own = source->distributed(fabric_->global_rank(), fabric_->world_size(), /*repeat=*/true);
        source = own;
      } else
        warn_once(
            "[trainer] a loader is not a levin::DataLoader, so its order stays: every rank sees all of its batches");
    }
    const auto device = module_->prefetch_to_device ? fabric_->device() : c10::Device(c10::kCPU);
    if (auto own = source->placed({.device = device,
                                   .local_ranks = fabric_->local_world_size(),
                                   .fixed_size = training || fabric_->world_size() > 1}))
      source = own;
    result.push_back(std::move(source));
  }
  return result;
}

namespace {

void count_batches(StageData& data, const char* option, const Limit& limit) {
  data.batches.clear();
  data.seen.assign(data.loaders.size(), 0);
  for (const auto& source : data.loaders) {
    const auto size = source->size();
    if (size) {
      data.batches.emplace_back(limited(option, limit, *size));
    } else if (!limit.is_share()) {
      data.batches.emplace_back(limit.count());
    } else {
      LEVIN_CHECK(limit.is_all(), "[trainer] ", option, " ", limit.to_string(),
                  " is a share of a loader that does not know its size; give a number of batches");
      data.batches.emplace_back(std::nullopt);
    }
  }
  data.ready = true;
}

}  // namespace

void Run::load_train_data() {
  if (train_data_.ready) return;
  auto loaders = asked_train_;
  if (loaders.empty()) loaders = data_ ? data_->any_train_dataloader() : module_->any_train_dataloader();
  LEVIN_CHECK(!loaders.empty(),
              "[trainer.fit] there is no training loader: pass one to fit, or override train_dataloader "
              "in the module or the data module");
  LEVIN_CHECK(loaders.size() == 1, "[trainer.fit] ", loaders.size(),
              " training loaders were given; combine them into one with levin::combine");
  train_data_.loaders = prepared(loaders, /*training=*/true);
  count_batches(train_data_, plan_.overfits ? "overfit_batches" : "limit_train_batches", plan_.limit_train);
  const auto batches = train_data_.batches.front();
  LEVIN_CHECK(!batches || *batches > 0, "[trainer.fit] the training loader has no batches");

  val_every_ = 0;
  const auto& check = plan_.val_check;
  if (check.unit() == Interval::Unit::kBatches) {
    val_every_ = check.count();
    LEVIN_CHECK(!batches || !plan_.check_val_every_n_epoch || val_every_ <= *batches, "[trainer] val_check_interval ",
                val_every_, " is more than the ", batches.value_or(0),
                " training batches of an epoch; set check_val_every_n_epoch to none to count across epochs");
  } else if (check.unit() == Interval::Unit::kShare) {
    if (batches)
      val_every_ = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(*batches) * check.share()));
    else
      LEVIN_CHECK(check.share() == 1.0, "[trainer] val_check_interval ", check.to_string(),
                  " is a share of a loader that does not know its size; give a number of batches");
  }
  if (!loggers_.empty() && batches && plan_.log_every_n_steps > *batches && !plan_.barebones)
    warn_once(concat("[trainer] log_every_n_steps ", plan_.log_every_n_steps, " is more than the ", *batches,
                     " training batches of an epoch: set it lower to see step metrics of every epoch"));
}

void Run::load_eval_data(Stage stage) {
  auto& data = eval_data(stage);
  if (data.ready) return;
  auto loaders = fitting_ ? asked_val_ : data.loaders;
  if (loaders.empty()) loaders = data_ ? data_->any_eval_dataloader(stage) : module_->any_eval_dataloader(stage);
  data.loaders = prepared(loaders, /*training=*/false);
  const char* option = stage == Stage::kTest      ? "limit_test_batches"
                       : stage == Stage::kPredict ? "limit_predict_batches"
                       : plan_.overfits           ? "overfit_batches"
                                                  : "limit_val_batches";
  count_batches(data, option, eval_limit(stage));
  data.common.clear();
  for (const auto& batches : data.batches) data.common.push_back(batches.value_or(0));
  if (fitting_ && fabric_->world_size() > 1 && !data.common.empty()) {
    const auto least = fabric_->all_reduce(at::tensor(data.common, at::kLong).to(fabric_->device()), "min").cpu();
    std::copy_n(least.const_data_ptr<int64_t>(), data.common.size(), data.common.begin());
  }
  // Where parameters are sharded every forward is a collective.
  if (fabric_->strategy().shards())
    check_lengths(*this, fitting_ ? "trainer.fit" : concat("trainer.", stage_name(stage)), data);
}

StageData& Run::eval_data(Stage stage) {
  return stage == Stage::kTest ? test_data_ : stage == Stage::kPredict ? predict_data_ : val_data_;
}
const Limit& Run::eval_limit(Stage stage) const {
  return stage == Stage::kTest ? plan_.limit_test : stage == Stage::kPredict ? plan_.limit_predict : plan_.limit_val;
}
MetricLog& Run::metric_log(Stage stage) {
  return stage == Stage::kTest ? test_log_ : stage == Stage::kTrain ? train_log_ : val_log_;
}

void Run::print_plan() {
  if (plan_.barebones) return;
  auto shown = plan_;
  shown.devices = fabric_->plan();
  log_info(concat("[trainer] ", shown.to_string()));
}

}  // namespace levin::detail
