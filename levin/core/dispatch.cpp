#include "levin/core/dispatch.h"

#include <algorithm>
#include <deque>
#include <mutex>
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

}  // namespace

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
  auto& library = kept_library("aten", key);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !chosen(*op) || op->hasKernelForDispatchKey(key)) continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedKernel(kernel));
  }
}

}  // namespace levin::detail
