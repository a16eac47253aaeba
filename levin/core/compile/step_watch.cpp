#include "levin/core/compile/step_watch.h"

#include <atomic>
#include <memory>
#include <mutex>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "levin/core/dispatch.h"
#include "levin/core/error.h"

namespace levin::detail {
namespace {

std::atomic<StepWatch*> watch_now = nullptr;

void watched_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  pass_to_watch(op, keys, stack);
}

}  // namespace

void register_step_watch(bool watches) {
  static std::mutex mutex;
  static std::unique_ptr<torch::Library>& library = *new std::unique_ptr<torch::Library>();
  static bool is_watched = false;
  const std::lock_guard lock(mutex);
  if (library && (is_watched || !watches)) return;
  library.reset();  // a key has one fallback
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kBelowAutogradKey, __FILE__, __LINE__);
  library->fallback(watches ? torch::CppFunction::makeFromBoxedFunction<&watched_operator>()
                            : torch::CppFunction::makeFallthrough());
  is_watched = watches;
}

WatchStep::WatchStep(StepWatch& watch)
    : include_((register_step_watch(/*watches=*/true), c10::DispatchKeySet(kBelowAutogradKey))) {
  StepWatch* none = nullptr;
  LEVIN_CHECK(watch_now.compare_exchange_strong(none, &watch), "[compile] another step is being traced");
}

WatchStep::~WatchStep() {
  watch_now = nullptr;
}

void call_below_watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, bool inside) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutogradKey);
  if (inside) return op.redispatchBoxed(below, stack);
  const c10::impl::ExcludeDispatchKeyGuard unseen(kBelowAutogradKey);
  op.redispatchBoxed(below, stack);
}

void pass_to_watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (auto* watch = watch_now.load()) return watch->on_operator(op, keys, stack);
  // Somebody else has included the key.
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutogradKey), stack);
}

bool is_step_watched() {
  return watch_now.load() && c10::impl::tls_is_dispatch_key_included(kBelowAutogradKey) &&
         !c10::impl::tls_is_dispatch_key_excluded(kBelowAutogradKey);
}

void tell_work(ToldWork told) {
  if (!is_step_watched()) return told.work(told.reads, told.writes);
  const c10::impl::ExcludeDispatchKeyGuard unseen(kBelowAutogradKey);
  watch_now.load()->on_work(told);
}

}  // namespace levin::detail
