// Tensors to the pointers that the fused steps work on, and the threads that do.
#include <algorithm>
#include <cstdint>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels {
namespace detail {
namespace {

constexpr int64_t kPiece = 65536;
static_assert(kPiece % kCodeBlock == 0);

bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

bool laid_out_alike(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

NumberType number_type(const char* operation, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return NumberType::kFloat;
    case at::kDouble:
      return NumberType::kDouble;
    case at::kHalf:
      return NumberType::kHalf;
    case at::kBFloat16:
      return NumberType::kBFloat16;
    default:
      levin::detail::fail(
          levin::detail::concat("[", operation, "] ", dtype, " is not known; Float, Double, Half and BFloat16 are"));
  }
}

/// The entry of parameter `index`, checked, without what belongs to the kind of step.
static StepEntry step_entry(const char* operation, size_t index, std::span<const Tensor> params,
                            std::span<const Tensor> grads, std::span<const Tensor> copies) {
  const Tensor& param = params[index];
  const Tensor& grad = grads[index];
  LEVIN_CHECK(param.is_non_overlapping_and_dense(), "[", operation, "] parameter ", index, " has strides ",
              param.strides(), "; its memory must have no gaps");
  LEVIN_CHECK(grad.device() == param.device() && laid_out_alike(grad, param), "[", operation, "] the gradient of ",
              "parameter ", index, " is ", grad.sizes(), " with strides ", grad.strides(), " on ", grad.device(),
              "; it must be as the parameter: ", param.sizes(), " with strides ", param.strides(), " on ",
              param.device());
  LEVIN_CHECK(takes_grad(param.scalar_type(), grad.scalar_type()), "[", operation, "] the gradient of parameter ",
              index, " is of ", grad.scalar_type(), "; the parameter's ", param.scalar_type(),
              ", or a floating dtype as narrow, is needed");
  StepEntry entry;
  entry.numel = param.numel();
  entry.param = param.mutable_data_ptr();
  entry.grad = grad.const_data_ptr();
  entry.param_type = number_type(operation, param.scalar_type());
  entry.grad_type = number_type(operation, grad.scalar_type());
  entry.aligned = is_aligned(entry.param) && is_aligned(entry.grad);
  if (!copies.empty() && copies[index].defined()) {
    const Tensor& copy = copies[index];
    LEVIN_CHECK(
        copy.device() == param.device() && laid_out_alike(copy, param) && at::isReducedFloatingType(copy.scalar_type()),
        "[", operation, "] the copy of parameter ", index, " is ", copy.toString(), " ", copy.sizes(), " on ",
        copy.device(), "; Half or BFloat16 ", param.sizes(), " laid out as the parameter on ", param.device(),
        " is needed");
    entry.copy = copy.mutable_data_ptr();
    entry.copy_type = number_type(operation, copy.scalar_type());
    entry.aligned = entry.aligned && is_aligned(entry.copy);
  }
  return entry;
}

StepEntries step_entries(const char* operation, std::span<const Tensor> params, std::span<const Tensor> grads,
                         std::span<const Tensor> copies, c10::function_ref<void(StepEntry&, size_t)> fill) {
  StepEntries result;
  result.entries.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const auto device = params[i].device();
    if (!result.device) result.device = device;
    LEVIN_CHECK(device == *result.device, "[", operation, "] parameters are on ", *result.device, " and ", device);
    if (params[i].numel() == 0) continue;
    auto entry = step_entry(operation, i, params, grads, copies);
    fill(entry, i);
    result.entries.push_back(entry);
  }
  return result;
}

void* state_pointer(const char* operation, StepEntry& entry, const char* name, std::span<const Tensor> list,
                    size_t index, const Tensor& param) {
  const Tensor& state = list[index];
  const auto dtype = state.scalar_type();
  LEVIN_CHECK(state.device() == param.device() && laid_out_alike(state, param), "[", operation, "] ", name,
              " of parameter ", index, " is ", state.sizes(), " with strides ", state.strides(), " on ", state.device(),
              "; it must be as the parameter: ", param.sizes(), " with strides ", param.strides(), " on ",
              param.device());
  LEVIN_CHECK(dtype == param.scalar_type() || dtype == at::kFloat || dtype == at::kBFloat16, "[", operation, "] ", name,
              " of parameter ", index, " is of ", dtype, "; the parameter's ", param.scalar_type(),
              ", Float or BFloat16 is needed");
  const NumberType type = number_type(operation, dtype);
  LEVIN_CHECK(entry.state_type == NumberType::kNone || entry.state_type == type, "[", operation, "] ", name,
              " of parameter ", index, " is of ", dtype, ", the rest of its state is not; one dtype is needed");
  entry.state_type = type;
  void* pointer = state.mutable_data_ptr();
  entry.aligned = entry.aligned && is_aligned(pointer);
  return pointer;
}

const float* step_pointer(const char* operation, std::span<const Tensor> steps, size_t index, const Tensor& param) {
  const Tensor& step = steps[index];
  LEVIN_CHECK(step.device() == param.device() && step.scalar_type() == at::kFloat && step.numel() == 1, "[", operation,
              "] the step of parameter ", index, " is ", step.toString(), " ", step.sizes(), " on ", step.device(),
              "; one Float on ", param.device(), " is needed");
  return step.const_data_ptr<float>();
}

double host_scale(const StepScale& scale) {
  return scale.scale ? *scale.scale->const_data_ptr<float>() : 1.0;
}

bool host_skips(const StepScale& scale) {
  return scale.found_inf && *scale.found_inf->const_data_ptr<float>() != 0;
}

void each_piece(std::span<const StepEntry> entries, c10::function_ref<void(size_t, int64_t, int64_t)> body) {
  struct Piece {
    size_t entry;
    int64_t begin, end;
  };
  int64_t total = 0;
  for (const auto& entry : entries) total += entry.numel;
  if (total <= kPiece || at::get_num_threads() == 1 || at::in_parallel_region()) {
    for (size_t e = 0; e < entries.size(); ++e) body(e, 0, entries[e].numel);
    return;
  }
  std::vector<Piece> pieces;
  for (size_t e = 0; e < entries.size(); ++e)
    for (int64_t begin = 0; begin < entries[e].numel; begin += kPiece)
      pieces.push_back({e, begin, std::min(begin + kPiece, entries[e].numel)});
  parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t from, int64_t to) {
    for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(to); ++i)
      body(pieces[i].entry, pieces[i].begin, pieces[i].end);
  });
}

}  // namespace detail

bool takes_grad(at::ScalarType param, at::ScalarType grad) {
  const auto known = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kDouble || at::isReducedFloatingType(dtype);
  };
  return param == grad || (known(param) && known(grad) && c10::elementSize(grad) <= c10::elementSize(param));
}

}  // namespace levin::kernels
