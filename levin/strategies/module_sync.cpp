#include "levin/strategies/module_sync.h"

#include "levin/core/error.h"

namespace levin {

std::string ModuleSync::prepare_capture(bool) {
  return "its strategy does not say that its part of a step can be captured";
}

Tensor ModuleSync::run_microbatches(const MicrobatchStep&) {
  throw Error("[strategy] this strategy does not compute a batch in parts");
}

void run_backward(std::span<ModuleSync* const> modules, const Tensor& loss, const std::function<void()>& backward) {
  try {
    for (auto* module : modules) module->before_backward(loss);
    backward();
  } catch (const std::exception& error) {
    std::exception_ptr better;  // every module must come to rest, also when one of them knows a better line
    for (auto* module : modules) try {
        module->after_backward(&error);
      } catch (const std::exception&) {
        if (!better) better = std::current_exception();
      }
    if (better) std::rethrow_exception(better);
    throw;
  }
  for (auto* module : modules) module->after_backward(nullptr);
}

}  // namespace levin
