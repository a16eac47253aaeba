#include "levin/devices/flop_counter.h"

#include <atomic>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include "levin/core/error.h"
#include "levin/devices/product_operators.h"

namespace levin {
namespace {

// The observer is a plain function without a place for a pointer, so the sum is of the process.
std::atomic<int64_t> counted = 0;
std::atomic<bool> counting = false;

using Inputs = c10::ArrayRef<const c10::IValue>;

std::vector<int64_t> shape_of(const c10::IValue& input) {
  if (!input.isTensor() || !input.toTensor().defined()) return {};
  return input.toTensor().sizes().vec();
}

ProductInputs product_inputs(ProductKind kind, Inputs inputs) {
  ProductInputs given;
  for (const auto& each : inputs) given.shapes.push_back(shape_of(each));
  const bool backward = kind == ProductKind::kConvolutionBackward;
  if (kind != ProductKind::kConvolution && !backward) return given;
  const size_t first = first_number(kind);
  const auto numbers = [&](size_t at) {
    return at < inputs.size() && inputs[at].isIntList() ? inputs[at].toIntVector() : std::vector<int64_t>();
  };
  given.stride = numbers(first), given.padding = numbers(first + 1), given.dilation = numbers(first + 2);
  given.transposed = first + 3 < inputs.size() && inputs[first + 3].isBool() && inputs[first + 3].toBool();
  if (backward && inputs.size() > 10 && inputs[10].isBoolList()) {  // output_mask
    const auto mask = inputs[10].toBoolList();
    given.gradients = static_cast<int>(mask.get(0)) + static_cast<int>(mask.get(1));
  }
  return given;
}

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  if (const auto* of = find_product_operator(function.name()))
    counted += static_cast<int64_t>(product_flops(*of, product_inputs(of->kind, function.inputs())));
  return nullptr;
}

}  // namespace

FlopCounter::FlopCounter() {
  LEVIN_CHECK(!counting.exchange(true), "[FlopCounter] another one is counting; there can be one at a time");
  counted = 0;
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(handle_);
  counting = false;
}

double FlopCounter::flops() const {
  return static_cast<double>(counted.load());
}

}  // namespace levin
