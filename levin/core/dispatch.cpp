#include "levin/core/dispatch.h"

#include <algorithm>
#include <array>
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

#include "levin/core/error.h"

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

class TakenOperator;

/// The kernel of an operator that this thread runs.
struct RunningKernel {
  const TakenOperator* op = nullptr;
  size_t number = 0;
};
thread_local RunningKernel running_kernel;

/// Those that have taken an operator at a key, in the order in which they did.
class TakenOperator final : public c10::OperatorKernel {
 public:
  /// Under the mutex.
  void add(const c10::BoxedKernel& kernel) {
    const auto count = count_.load();
    LEVIN_CHECK(count < kernels_.size(), "[dispatch] more than ", kernels_.size(), " have taken an operator");
    kernels_[count] = kernel;
    count_ = count + 1;
  }
  size_t count() const { return count_; }
  void call(size_t number, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    struct Restores {
      RunningKernel before;
      ~Restores() { running_kernel = before; }
    } const restores{std::exchange(running_kernel, {this, number})};
    kernels_[number].callBoxed(op, keys, stack);
  }
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    call(0, op, keys, stack);
  }

 private:
  std::array<c10::BoxedKernel, 4> kernels_;
  std::atomic<size_t> count_ = 0;
};

}  // namespace

void pass_on(c10::DispatchKey key, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto here = running_kernel;
  if (here.number + 1 < here.op->count()) return here.op->call(here.number + 1, op, keys, stack);
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
    auto first = std::make_unique<TakenOperator>();
    first->add(kernel);
    known = first.get();
    library.impl(full.c_str(),
                 torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::move(first))));
  }
}

}  // namespace levin::detail
