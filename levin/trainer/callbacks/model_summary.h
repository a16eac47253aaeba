#pragma once

#include <cstdint>

#include "levin/trainer/callback.h"

namespace levin {

struct ModelSummaryOptions {
  /// How deep modules are listed: 1 the children of the model, 0 the totals alone, -1 everything.
  int64_t max_depth = 1;
};

/// Prints a table of the model's modules and their parameters when fit starts; with the shapes that go in and out when
/// the module has a run_sample().
class ModelSummary : public Callback {
 public:
  explicit ModelSummary(ModelSummaryOptions options = {});

  void on_fit_start(TrainerContext& run) override;

 private:
  ModelSummaryOptions options_;
};

}  // namespace levin
