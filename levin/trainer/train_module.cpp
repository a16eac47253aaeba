#include "levin/trainer/train_module.h"

#include "levin/core/log.h"
#include "levin/devices/graphs.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin {
namespace {

detail::Run& run_of(const ModuleInRun& module) {
  return static_cast<detail::RunContext&>(module.trainer()).run();
}

}  // namespace

std::string Callback::state_key() const {
  // "N5levin13EarlyStoppingE" is no name for people, but the same in every build of a program.
  return c10::demangle(typeid(*this).name());
}

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::kValidate:
      return "validate";
    case Stage::kTest:
      return "test";
    case Stage::kPredict:
      return "predict";
    case Stage::kIdle:
    case Stage::kTrain:
    case Stage::kSanity:
      return "fit";
  }
  return "fit";
}

const Tensor& StepOutput::operator[](std::string_view name) const {
  std::string names;
  for (const auto& [known, tensor] : extra) {
    if (known == name) return tensor;
    names += (names.empty() ? "" : ", ") + known;
  }
  throw Error(detail::concat("[step output] there is no \"", name, "\" in it (there: ", names, ")"));
}

TrainerContext& ModuleInRun::trainer() const {
  LEVIN_CHECK(context_, "[", name(), "] belongs to no run: this is only there inside fit, validate, test and predict");
  return *context_;
}

void ModuleInRun::fail_missing(const char* step, const char* what) const {
  throw Error(detail::concat("[trainer] ", what, " needs ", name(), " to override ", step));
}

int64_t ModuleInRun::current_epoch() const {
  detail::refuse_capture("it asks for current_epoch(), which replays would not see change");
  return trainer().current_epoch();
}
int64_t ModuleInRun::global_step() const {
  detail::refuse_capture("it asks for global_step(), which replays would not see change");
  return trainer().global_step();
}
c10::Device ModuleInRun::device() const {
  return trainer().fabric().device();
}

void TrainModuleBase::freeze() {
  for (auto& parameter : parameters()) parameter.requires_grad_(false);
  eval();
}
void TrainModuleBase::unfreeze() {
  for (auto& parameter : parameters()) parameter.requires_grad_(true);
  train();
}

// A step may be tried by hand, so this is no error.
void ModuleInRun::warn_log_goes_nowhere(std::string_view value) const {
  warn_once(detail::concat("[", name(), ".log] \"", value,
                           "\" goes nowhere: log() works inside trainer.fit, validate and test, in steps and in hooks "
                           "of batches and epochs"));
}
void ModuleInRun::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  context_ ? context_->log(name, value, options) : warn_log_goes_nowhere(name);
}
void ModuleInRun::log(std::string_view name, double value, const LogOptions& options) {
  context_ ? context_->log(name, value, options) : warn_log_goes_nowhere(name);
}
void ModuleInRun::log_dict(std::initializer_list<std::pair<std::string_view, Tensor>> values,
                           const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

Optimizer& ModuleInRun::optimizer(size_t index) {
  auto& all = run_of(*this).model.optimizers;
  LEVIN_CHECK(index < all.size(), "[", name(), ".optimizer] there is no optimizer ", index, " (", all.size(),
              " from configure_optimizers)");
  return all[index];
}
const std::vector<Optimizer>& ModuleInRun::optimizers() {
  return trainer().optimizers();
}
Scheduler& ModuleInRun::lr_scheduler(size_t index) {
  auto& all = trainer().schedulers();
  LEVIN_CHECK(index < all.size(), "[", name(), ".lr_scheduler] there is no scheduler ", index, " (", all.size(),
              " from configure_optimizers)");
  return all[index].scheduler;
}

void ModuleInRun::manual_backward(const Tensor& loss) {
  detail::manual_backward(run_of(*this), loss);
}
void ModuleInRun::run_backward(const Tensor& loss) {
  trainer().fabric().backward(loss);
}
void ModuleInRun::clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm) {
  LEVIN_CHECK(algorithm == "norm" || algorithm == "value", "[clip_gradients] algorithm \"", algorithm,
              "\" is not known (known: norm, value)");
  detail::clip_gradients(run_of(*this), optimizer, clip_val, algorithm);
}

void ModuleInRun::toggle_optimizer(Optimizer& optimizer) {
  LEVIN_CHECK(toggled_.empty(), "[toggle_optimizer] another optimizer is toggled; untoggle it first");
  const auto own = optimizer.all_params();
  for (const auto& other : optimizers())
    for (auto parameter : other.all_params()) {
      const bool mine = std::any_of(own.begin(), own.end(), [&](const Tensor& p) { return p.is_same(parameter); });
      if (mine) continue;
      toggled_.emplace_back(parameter, parameter.requires_grad());
      parameter.requires_grad_(false);
    }
}
void ModuleInRun::untoggle_optimizer(Optimizer&) {
  for (auto& [parameter, needs_grad] : toggled_) parameter.requires_grad_(needs_grad);
  toggled_.clear();
}

void ModuleInRun::print_line(const std::string& line) {
  if (context_)
    context_->print(line);
  else
    std::puts(line.c_str());
}

}  // namespace levin
