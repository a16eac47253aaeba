#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "levin/trainer/step.h"

namespace levin::detail {

class Run;

void run_fit_loop(Run& run);
/// One pass over the loaders of a stage; at most `limit` batches of each when it is not negative.
void run_eval_loop(Run& run, Stage stage, int64_t limit = -1);
std::vector<std::vector<StepOutput>> run_predict_loop(Run& run, bool keep);
/// Whether the batch made an optimizer step.
bool run_training_batch(Run& run, const AnyBatch& batch, int64_t batch_idx, StepOutput& output);
/// `done`: batches or epochs that are done, by the interval.
void step_schedulers(Run& run, std::string_view interval, bool plateau, int64_t done);

}  // namespace levin::detail
