#include "levin/nn/checkpointing/checkpointing_selective.h"

#include <map>
#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "levin/core/compile/step_watch.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/saved_tensors.h"

namespace levin::detail {
namespace {

// Below autograd, so that the graph is built as ever, and above the kernels of every device. No part of LibTorch uses
// it.
constexpr auto kKeepKey = c10::DispatchKey::Fake;

using KeepStack = torch::jit::Stack;

thread_local KeptResultsScope* kept_scope = nullptr;

void keep_or_return(const c10::OperatorHandle& op, c10::DispatchKeySet keys, KeepStack* stack);

bool returns_new_tensors(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || op.schema().returns().empty() || op.schema().is_mutable()) return false;
  for (const auto& value : op.schema().returns())
    if (value.alias_info()) return false;
  return true;
}

/// It runs as the operators that it is made of, and never below autograd.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
}

/// Once per operator and process; without a scope the key is never set.
void intercept_operator(const c10::OperatorName& name) {
  static std::mutex mutex;
  static std::unordered_set<c10::OperatorName> done;
  static std::map<std::string, torch::Library> libraries;
  const std::lock_guard lock(mutex);
  static bool is_registered = false;
  if (!is_registered) {
    register_step_watch(/*watches=*/false);
    is_registered = true;
  }
  if (!done.insert(name).second) return;
  const auto space = name.name.substr(0, name.name.find("::"));
  auto& library = libraries.try_emplace(space, torch::Library::IMPL, space, kKeepKey, __FILE__, __LINE__).first->second;
  const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&keep_or_return>());
}

/// Another tensor of the same memory; autograd will give the original a history.
Tensor same_memory(const Tensor& tensor) {
  return tensor.defined() ? Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
                                tensor.unsafeGetTensorImpl()->version_counter(), false))
                          : Tensor();
}

}  // namespace

// ---- KeptOperators

KeptOperators::KeptOperators(const std::vector<std::string>& names) {
  const auto all = c10::Dispatcher::singleton().getAllOpNames();
  for (const auto& wanted : names) {
    bool known = false, composite = false, kept = false;
    for (const auto& name : all) {
      if (name.name != wanted) continue;
      const auto op = c10::Dispatcher::singleton().findOp(name);
      if (!op || !op->hasSchema()) continue;
      known = true;
      if (!returns_new_tensors(*op)) continue;
      composite = is_composite(*op);
      if (composite) continue;
      intercept_operator(name);
      names_.insert(name);
      kept = true;
    }
    if (!known) {
      std::vector<std::string> words;
      for (const auto& name : all) words.push_back(name.name);
      const auto nearest = nearest_word(wanted, words);
      fail(concat("[checkpointing] keep_results_of names \"", wanted, "\", which is no operator",
                  nearest.empty() ? "; names look like aten::mm" : "; did you mean \"" + nearest + "\"?"));
    }
    LEVIN_CHECK(kept, "[checkpointing] results of \"", wanted, "\" cannot be kept: ",
                composite ? "it is made of other operators; name those (aten::mm and aten::addmm for aten::linear)"
                          : "it returns no tensors of its own");
  }
}

// ---- KeptResultsScope

KeptResultsScope::KeptResultsScope(KeptResults* results, Mode mode, std::string owner)
    : results_(results), mode_(mode), owner_(std::move(owner)) {
  if (!results_) return;
  if (mode_ == Mode::kKeep) results_->results_.clear();
  outer_ = kept_scope;
  kept_scope = this;
  include_.emplace(kKeepKey);
}

KeptResultsScope::~KeptResultsScope() {
  if (!results_) return;
  include_.reset();
  kept_scope = outer_;
}

class KeptResultsAccess {
 public:
  static void run(KeptResultsScope* scope, const c10::OperatorHandle& op, c10::DispatchKeySet keys, KeepStack* stack) {
    if (!scope) {
      if (is_step_watched()) return pass_to_watch(op, keys, stack);
      const c10::impl::ExcludeDispatchKeyGuard below(kKeepKey);
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKeepKey), stack);
      return;
    }
    if (!scope->results_->operators_->contains(op.operator_name())) return run(scope->outer_, op, keys, stack);
    if (scope->mode_ == KeptResultsScope::Mode::kReturn && give_back(*scope, op, stack)) return;
    const auto devices = random_devices(op, *stack);
    run(scope->outer_, op, keys, stack);
    if (scope->mode_ == KeptResultsScope::Mode::kKeep) keep(*scope, op, *stack, devices);
  }

 private:
  /// Where the operator may draw random numbers.
  static std::vector<c10::Device> random_devices(const c10::OperatorHandle& op, const KeepStack& stack) {
    std::vector<c10::Device> devices;
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) return devices;
    devices.emplace_back(c10::kCPU);
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
      if (stack[i].isTensor() && stack[i].toTensor().defined()) devices.push_back(stack[i].toTensor().device());
    return devices;
  }

  static void keep(KeptResultsScope& scope, const c10::OperatorHandle& op, const KeepStack& stack,
                   const std::vector<c10::Device>& devices) {
    KeptResults::Result result{op.operator_name(), {}, {}, {}};
    for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
      const bool tensor = stack[i].isTensor() && stack[i].toTensor().defined();
      result.values.push_back(tensor ? c10::IValue(same_memory(stack[i].toTensor())) : stack[i]);
      result.versions.push_back(tensor ? stack[i].toTensor()._version() : 0);
      if (tensor) SavedTensorScope::note_kept(stack[i].toTensor());
    }
    if (!devices.empty()) result.rng_after.emplace(devices);
    scope.results_->results_.push_back(std::move(result));
  }

  /// False when a result was changed in place after it was kept: it must be computed again.
  static bool give_back(KeptResultsScope& scope, const c10::OperatorHandle& op, KeepStack* stack) {
    auto& results = scope.results_->results_;
    LEVIN_CHECK(scope.next_ < results.size() && results[scope.next_].name == op.operator_name(),
                "[checkpointing] forward of ", scope.owner_, " does not do the same when it runs again: it calls ",
                op.operator_name().name, " where it called ",
                scope.next_ < results.size() ? results[scope.next_].name.name : "no more kept operators", " before");
    const auto& result = results[scope.next_++];
    for (size_t i = 0; i < result.values.size(); ++i)
      if (result.values[i].isTensor() && result.values[i].toTensor().defined() &&
          result.values[i].toTensor()._version() != result.versions[i])
        return false;
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (const auto& value : result.values)
      stack->push_back(value.isTensor() ? c10::IValue(same_memory(value.toTensor())) : value);
    if (result.rng_after) result.rng_after->apply();
    return true;
  }
};

namespace {

void keep_or_return(const c10::OperatorHandle& op, c10::DispatchKeySet keys, KeepStack* stack) {
  KeptResultsAccess::run(kept_scope, op, keys, stack);
}

}  // namespace
}  // namespace levin::detail
