#include "levin/cli/prediction_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/fabric/fabric.h"
#include "levin/trainer/context.h"
#include "levin/trainer/step.h"

namespace levin::cli {
namespace {

constexpr int64_t kShownNumbers = 4;

std::string first_numbers(const Tensor& tensor) {
  const auto numbers = tensor.flatten().slice(0, 0, kShownNumbers).to(at::kCPU, at::kDouble);
  std::string text;
  for (int64_t i = 0; i < numbers.numel(); ++i)
    text += fmt::format("{}{:.5g}", i > 0 ? ", " : "", numbers.const_data_ptr<double>()[i]);
  return tensor.numel() > kShownNumbers ? text + ", ..." : text;
}

}  // namespace

void PredictionSummary::add(int64_t loader, const std::string& name, const Tensor& tensor) {
  if (!tensor.defined()) return;
  auto& seen = seen_[{loader, name}];
  if (++seen.batches == 1) {
    seen.dtype = c10::toString(tensor.scalar_type());
    seen.sizes = tensor.sizes().vec();
    seen.first_numbers = first_numbers(tensor);
    return;
  }
  // Batches are concatenated where only their rows differ, as in the file of --output.
  const bool fits = !seen.sizes.empty() && static_cast<int64_t>(seen.sizes.size()) == tensor.dim() &&
                    c10::IntArrayRef(seen.sizes).slice(1) == tensor.sizes().slice(1);
  if (fits)
    seen.sizes[0] += tensor.size(0);
  else
    seen.sizes.clear();
}

void PredictionSummary::on_predict_batch_end(TrainerContext&, const StepOutput& output, const AnyBatch&,
                                             const StepInfo& at) {
  add(at.dataloader_idx, "prediction", output.loss);
  for (const auto& [name, tensor] : output.extra) add(at.dataloader_idx, name, tensor);
}

void PredictionSummary::on_predict_end(TrainerContext& run) {
  if (seen_.empty()) return;
  run.print("Predictions", run.fabric().world_size() > 1 ? " of rank 0" : "",
            " (not saved: --output FILE.safetensors saves them)");
  for (const auto& [key, seen] : seen_) {
    const auto loader = seen_.rbegin()->first.first > 0 ? fmt::format("loader_{}.", key.first) : std::string();
    const auto sizes = seen.sizes.empty() ? fmt::format("in {} batches", seen.batches) : fmt::format("{}", seen.sizes);
    run.print("  ", loader, key.second, "  ", seen.dtype, " ", sizes, "  ", seen.first_numbers);
  }
}

}  // namespace levin::cli
