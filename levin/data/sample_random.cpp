#include "levin/data/sample_random.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/core/dispatch.h"

namespace levin::detail {
namespace {

constexpr auto kSampleKey = kTopKey;

thread_local Random* sample_random = nullptr;
thread_local bool sample_seeded = false;

// Seeding takes a microsecond or two, so it waits for the first draw of a sample.
at::Generator& sample_generator() {
  thread_local at::Generator generator = at::detail::createCPUGenerator();
  if (!sample_seeded) {
    generator.set_current_seed(sample_random->bits64());
    sample_seeded = true;
  }
  return generator;
}

bool is_elsewhere(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && !value.toTensor().is_cpu();
  return value.isDevice() && !value.toDevice().is_cpu();
}

void draw_for_sample(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (sample_random) {
    const auto& arguments = op.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    bool elsewhere = false;
    for (size_t i = 0; i < arguments.size(); ++i) elsewhere |= is_elsewhere((*stack)[first + i]);
    for (size_t i = 0; i < arguments.size() && !elsewhere; ++i)
      if (arguments[i].name() == "generator" && (*stack)[first + i].isNone()) (*stack)[first + i] = sample_generator();
  }
  pass_on(kSampleKey, op, keys, stack);
}

// Once per process: every operator that takes a generator.
void register_draws() {
  static const bool done = [] {
    const auto draws = [](const c10::OperatorHandle& op) {
      const auto& arguments = op.schema().arguments();
      return std::any_of(arguments.begin(), arguments.end(),
                         [](const auto& each) { return each.name() == "generator"; });
    };
    take_operators(kSampleKey, draws, c10::BoxedKernel::makeFromFunction<&draw_for_sample>());
    return true;
  }();
  (void)done;
}

}  // namespace

SampleRandomScope::SampleRandomScope(Random& random)
    : outer_(sample_random),
      outer_seeded_(sample_seeded),
      was_included_(c10::impl::tls_is_dispatch_key_included(kSampleKey)) {
  register_draws();
  sample_random = &random;
  sample_seeded = false;
  c10::impl::tls_set_dispatch_key_included(kSampleKey, true);
}

SampleRandomScope::~SampleRandomScope() {
  sample_random = outer_;
  sample_seeded = outer_seeded_;
  c10::impl::tls_set_dispatch_key_included(kSampleKey, was_included_);
}

}  // namespace levin::detail
