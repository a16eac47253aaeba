#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "levin/trainer/callback.h"

namespace levin::cli {

/// Prints at the end of a predict run that saves nothing: each tensor that predict_step returned, by its name, with
/// dtype, sizes over all batches and the first numbers. Of rank 0; nothing is kept.
class PredictionSummary final : public Callback {
 public:
  void on_predict_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                            const StepInfo& at) override;
  void on_predict_end(TrainerContext& run) override;

 private:
  struct Seen {
    std::string dtype, first_numbers;
    std::vector<int64_t> sizes;
    int64_t batches = 0;
  };
  void add(int64_t loader, const std::string& name, const Tensor& tensor);

  std::map<std::pair<int64_t, std::string>, Seen> seen_;
};

}  // namespace levin::cli
