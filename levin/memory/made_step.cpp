#include "levin/memory/made_step.h"

#include <vector>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/failed_unit.h"

namespace levin::detail {
namespace {

TrainingStep make_step(const MakeTrainingStep& make, const InitOptions& options) {
  InitScope scope(options);
  auto step = make();
  LEVIN_CHECK(step.module && step.forward && step.loss,
              "[estimate_memory] the function must make a module, a forward and a loss");
  scope.finish(*step.module);
  return step;
}

std::vector<Tensor> tensors_of(const torch::nn::Module& module) {
  auto all = module.parameters();
  for (const auto& buffer : module.buffers())
    if (buffer.defined()) all.push_back(buffer);
  return all;
}

bool has_data(const torch::nn::Module& module) {
  for (const auto& param : module.parameters())
    if (!param.is_meta()) return true;
  return false;
}

/// A tensor that was loaded cannot take the place of a meta tensor.
bool loads_weights(const c10::Error& error) {
  const auto text = first_line(error);
  return text.find("incompatible tensor type") != text.npos || text.find("Cannot copy out of meta tensor") != text.npos;
}

/// Whether somebody else holds the parameters that `make` makes.
bool is_made_outside(const MakeTrainingStep& make) {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
  for (const auto& param : make_step(make, {}).module->parameters()) made.emplace_back(param.getIntrusivePtr());
  for (const auto& param : made)
    if (param.lock()) return true;
  return false;
}

/// The tensor stays what modules hold, without its memory.
void let_data_go(const Tensor& tensor, std::optional<c10::ScalarType> dtype) {
  auto options = tensor.options().device(at::kMeta).pinned_memory({});
  if (dtype && tensor.is_floating_point()) options = options.dtype(*dtype);
  const auto bare = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(bare.getIntrusivePtr());
}

}  // namespace

TrainingStep make_without_data(const MakeTrainingStep& make, std::optional<c10::ScalarType> dtype) {
  try {
    auto step = make_step(make, {.device = c10::Device(at::kMeta), .dtype = dtype});
    if (!has_data(*step.module)) return step;
  } catch (const c10::Error& error) {
    if (!loads_weights(error))
      fail(concat("[estimate_memory] the constructor does not run on shapes alone: ", first_line(error)));
  }
  LEVIN_CHECK(!is_made_outside(make),
              "[estimate_memory] the parameters were made outside of the function; make the "
              "model inside it, where it may load its weights, too");
  auto step = make_step(make, {.dtype = dtype});
  for (const auto& tensor : tensors_of(*step.module))
    if (!tensor.is_meta()) let_data_go(tensor, dtype);
  return step;
}

}  // namespace levin::detail
