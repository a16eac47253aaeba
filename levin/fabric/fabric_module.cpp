#include "levin/fabric/fabric_module.h"

#include <torch/csrc/autograd/graph_task.h>

#include "levin/core/error.h"
#include "levin/fabric/fabric_core.h"
#include "levin/nn/forward_dtype.h"

namespace levin::detail {

Tensor cast_floating(const Tensor& tensor, c10::ScalarType dtype) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) return tensor;
  return tensor.to(dtype);
}

namespace {

/// Where parameters are sharded, strategies keep them in dtypes of their own at times; none of these is float64.
void check_dtype(const ModuleCall& call) {
  if (!call.witness.defined() || call.running > 0) return;
  const auto now = call.witness.scalar_type();
  if (now == call.witness_dtype) return;
  LEVIN_CHECK(now != at::kDouble && call.core->strategy->shards(), "[fabric] parameters were ", call.witness_dtype,
              " at fabric.setup, and are ", now,
              ": net->to(dtype) stands before setup; or ask for a precision, Fabric({.precision = \"",
              now == at::kDouble ? "64-true" : "bf16-true", "\"})");
}

}  // namespace

CallScope::CallScope(ModuleCall& call) : call_(call) {
  check_dtype(call);
  if (call.sync) {
    call.core->strategy->group().note_doing("forward");
    call.sync->before_forward();
  }
  if (call.precision.autocast) {
    autocast_.emplace(call.device, *call.precision.autocast);
    if (call.fp8) fp8_.emplace(call.fp8);
    if (call.weight_casts) weight_casts_.emplace(*call.weight_casts, *call.precision.autocast);
  } else if (call.precision.params) {
    // Tensors that forward makes itself (masks, positions) must have the dtype of the parameters.
    default_dtype_ = set_forward_dtype(*call.precision.params);
  }
  ++call.running;
}

void CallScope::leave() {
  left_ = true;
  if (call_.sync) call_.sync->leave_forward();
}

CallScope::~CallScope() {
  --call_.running;
  try {
    if (!left_) leave();
  } catch (...) {  // it follows from what is on its way already
  }
  if (default_dtype_) set_forward_dtype(*default_dtype_);
}

namespace {

/// Whether the pass at hand is torch::autograd::grad: it leaves the parameters alone, and may be a part of the loss.
bool inside_autograd_grad() {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes && !nodes->empty();
}

}  // namespace

void finish_call(ModuleCall& call, std::vector<Tensor*>& outputs) {
  if (call.precision.outputs)
    for (auto* tensor : outputs) *tensor = cast_floating(*tensor, *call.precision.outputs);
  std::vector<Tensor> with_grad;
  if (c10::GradMode::is_enabled())
    for (auto* tensor : outputs)
      if (tensor->requires_grad()) with_grad.push_back(*tensor);
  for (auto& tensor : with_grad) {
    if (tensor.is_leaf()) {
      call.handed_out_leaf = true;
      continue;
    }
    tensor.register_hook([weak = std::weak_ptr(call.core), guards = call.guards_backward,
                          output = std::make_shared<PendingOutput>(call.pending)](const Tensor& gradient) {
      const auto core = weak.lock();
      if (!core || inside_autograd_grad()) return gradient;
      LEVIN_CHECK(!guards || core->in_backward > 0, "[backward] precision \"", core->plan.precision.name,
                  "\" with strategy \"", core->strategy->name(),
                  "\" needs fabric.backward(loss) in place of loss.backward()");
      if (core->in_backward > 0 && !core->retains_graph) output->reached();
      return gradient;
    });
  }
  if (call.sync) call.sync->after_forward(with_grad);
}

}  // namespace levin::detail
