#include "levin/fabric/microbatches.h"

#include <ATen/ops/zeros.h>

#include "levin/distributed/checks.h"
#include "levin/fabric/fabric.h"
#include "levin/fabric/fabric_core.h"

namespace levin {

std::string detail::shape_text(const Tensor& tensor) {
  return describe(tensor);
}

std::vector<int64_t> detail::rows_of_parts(int64_t rows, int parts) {
  std::vector<int64_t> counts;
  for (int i = 0; i < parts; ++i) counts.push_back(rows / parts + (i < rows % parts ? 1 : 0));
  return counts;
}

int Fabric::microbatches(detail::ModuleCall& call, int64_t rows) const {
  if (!call.sync) return 0;
  const int parts = call.sync->microbatches(rows);
  LEVIN_CHECK(parts == 0 || rows >= parts, "[fabric.forward_backward] a batch of ", rows, " rows has no ", parts,
              " micro-batches");
  return parts;
}

Tensor Fabric::run_microbatches(detail::ModuleCall& call, MicrobatchStep step) {
  auto& core = *core_;
  // Ranks without the loss step with the same scale, on their device.
  if (core.scaler && at::GradMode::is_enabled()) (void)core.scaler->scale(at::zeros({}, at::device(device())));
  const auto scale = std::move(step.scale);
  step.scale = [&core, scale](const Tensor& loss) {
    const auto mine = scale ? scale(loss) : loss;
    return core.scaler ? core.scaler->scale(mine) : mine;
  };
  // Shapes of activations follow from more than those of the batch.
  for (auto& shape : step.shapes)
    shape += detail::concat(at::GradMode::is_enabled() ? "grad" : "", call.module->is_training() ? " training" : "");
  struct Inside {
    std::atomic<int>& depth;
    explicit Inside(std::atomic<int>& d) : depth(d) { ++depth; }
    ~Inside() { --depth; }
  } inside(core.in_backward);
  auto loss = call.sync->run_microbatches(step);
  call.handed_out_leaf = false;
  return loss;
}

}  // namespace levin
