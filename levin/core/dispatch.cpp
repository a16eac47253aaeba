#include "levin/core/dispatch.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace levin::detail {
namespace {

std::mutex& dispatch_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// What was registered stays as long as the process.
torch::Library& kept_library(const char* name, c10::DispatchKey key) {
  static auto& all = *new std::deque<torch::Library>();
  return all.emplace_back(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

/// One that has taken an operator at a key, and who took it after that. For the life of the process.
struct TakenKernel {
  const c10::BoxedKernel kernel;
  std::atomic<const TakenKernel*> next = nullptr;
};
/// The kernel that this thread runs.
thread_local const TakenKernel* running_kernel = nullptr;

void call(const TakenKernel& taken, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  struct Restores {
    const TakenKernel* before;
    ~Restores() { running_kernel = before; }
  } const restores{std::exchange(running_kernel, &taken)};
  taken.kernel.callBoxed(op, keys, stack);
}

/// Those that have taken an operator at a key, in the order in which they did.
class TakenOperator final : public c10::OperatorKernel {
 public:
  explicit TakenOperator(const c10::BoxedKernel& kernel) : first_{.kernel = kernel} {}

  /// Under the mutex.
  void add(const c10::BoxedKernel& kernel) {
    auto* added = new TakenKernel{.kernel = kernel};
    last_->next = added;
    last_ = added;
  }
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    call(first_, op, keys, stack);
  }

 private:
  TakenKernel first_;
  TakenKernel* last_ = &first_;
};

}  // namespace

void pass_on(c10::DispatchKey key, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (const auto* next = running_kernel->next.load()) return call(*next, op, keys, stack);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

void let_others_pass(c10::DispatchKey key) {
  static std::vector<c10::DispatchKey> done;
  const std::lock_guard lock(dispatch_mutex());
  if (std::find(done.begin(), done.end(), key) != done.end()) return;
  kept_library("_", key).fallback(torch::CppFunction::makeFallthrough());
  done.push_back(key);
}

void take_operators(c10::DispatchKey key, const std::function<bool(const c10::OperatorHandle&)>& chosen,
                    const c10::BoxedKernel& kernel) {
  let_others_pass(key);
  const std::lock_guard lock(dispatch_mutex());
  static auto& taken = *new std::map<std::pair<c10::DispatchKey, std::string>, TakenOperator*>();
  auto& library = kept_library("aten", key);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !chosen(*op)) continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    auto& known = taken[{key, full}];
    if (!known && op->hasKernelForDispatchKey(key)) continue;
    if (known) {
      known->add(kernel);
      continue;
    }
    auto first = std::make_unique<TakenOperator>(kernel);
    known = first.get();
    library.impl(full.c_str(),
                 torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::move(first))));
  }
}

}  // namespace levin::detail
