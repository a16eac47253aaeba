#include "levin/trainer/train_module.h"

#include "levin/core/log.h"
#include "levin/trainer/run.h"

namespace levin {
namespace {

detail::Run& run_of(const TrainModuleBase& module) {
  return static_cast<detail::Run&>(module.trainer());
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
    default:
      return "fit";
  }
}

const Tensor& StepOutput::operator[](std::string_view name) const {
  std::string names;
  for (const auto& [known, tensor] : extra) {
    if (known == name) return tensor;
    names += (names.empty() ? "" : ", ") + known;
  }
  throw Error(detail::concat("[step output] there is no \"", name, "\" in it (there: ", names, ")"));
}

TrainerContext& TrainModuleBase::trainer() const {
  LEVIN_CHECK(context_, "[", name(), "] belongs to no run: this is only there inside fit, validate, test and predict");
  return *context_;
}

void TrainModuleBase::fail_missing(const char* step, const char* what) const {
  throw Error(detail::concat("[trainer] ", what, " needs ", name(), " to override ", step));
}

int64_t TrainModuleBase::current_epoch() const {
  return trainer().current_epoch();
}
int64_t TrainModuleBase::global_step() const {
  return trainer().global_step();
}
c10::Device TrainModuleBase::device() const {
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
void TrainModuleBase::warn_log_goes_nowhere(std::string_view value) const {
  warn_once(detail::concat("[", name(), ".log] \"", value,
                           "\" goes nowhere: log() works inside trainer.fit, validate and test, in steps and in hooks "
                           "of batches and epochs"));
}
void TrainModuleBase::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  context_ ? context_->log(name, value, options) : warn_log_goes_nowhere(name);
}
void TrainModuleBase::log(std::string_view name, double value, const LogOptions& options) {
  context_ ? context_->log(name, value, options) : warn_log_goes_nowhere(name);
}
void TrainModuleBase::log_dict(std::initializer_list<std::pair<std::string_view, Tensor>> values,
                               const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

Optimizer& TrainModuleBase::optimizer(size_t index) {
  auto& all = run_of(*this).optimizers_;
  LEVIN_CHECK(index < all.size(), "[", name(), ".optimizer] there is no optimizer ", index, " (", all.size(),
              " from configure_optimizers)");
  return all[index];
}
const std::vector<Optimizer>& TrainModuleBase::optimizers() {
  return trainer().optimizers();
}
Scheduler& TrainModuleBase::lr_scheduler(size_t index) {
  auto& all = trainer().schedulers();
  LEVIN_CHECK(index < all.size(), "[", name(), ".lr_scheduler] there is no scheduler ", index, " (", all.size(),
              " from configure_optimizers)");
  return all[index].scheduler;
}

void TrainModuleBase::manual_backward(const Tensor& loss) {
  run_of(*this).manual_backward(loss);
}
void TrainModuleBase::run_backward(const Tensor& loss) {
  trainer().fabric().backward(loss);
}
void TrainModuleBase::clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm) {
  LEVIN_CHECK(algorithm == "norm" || algorithm == "value", "[clip_gradients] algorithm \"", algorithm,
              "\" is not known (known: norm, value)");
  run_of(*this).clip_gradients(optimizer, clip_val, algorithm);
}

void TrainModuleBase::toggle_optimizer(Optimizer& optimizer) {
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
void TrainModuleBase::untoggle_optimizer(Optimizer&) {
  for (auto& [parameter, needs_grad] : toggled_) parameter.requires_grad_(needs_grad);
  toggled_.clear();
}

void TrainModuleBase::print_line(const std::string& line) {
  if (context_)
    context_->print_line(line);
  else
    std::puts(line.c_str());
}

}  // namespace levin
