#include "levin/trainer/callbacks/model_summary.h"

#include "levin/core/error.h"
#include "levin/nn/summary.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {

ModelSummary::ModelSummary(ModelSummaryOptions options) : options_(options) {
  LEVIN_CHECK(options_.max_depth >= -1, "[ModelSummary] max_depth is ", options_.max_depth,
              "; -1 lists everything, 0 the totals alone, 1 the children of the model");
}

void ModelSummary::on_fit_start(TrainerContext& run) {
  // Every rank runs the sample: a model that is spread over them needs all of them.
  bool has_sample = false;
  auto summary = summarize(
      run.module(), {.max_depth = options_.max_depth, .sample = [&] { has_sample = run.module().run_sample(); }});
  summary.has_sizes = has_sample;
  auto text = summary.text();
  while (text.ends_with('\n')) text.pop_back();
  run.print(text);
}

}  // namespace levin
