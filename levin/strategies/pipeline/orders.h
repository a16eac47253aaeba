#pragma once

#include <vector>

#include "levin/strategies/pipeline/schedule.h"

/// In which order a rank computes: one function for each schedule, without sends and receives.
namespace levin::detail {

struct PipelineSizes {
  int ranks, chunks, microbatches;
};

using PipelineOrder = std::vector<PipelineAction>;

PipelineOrder gpipe_order(const PipelineSizes& sizes, int rank);
PipelineOrder one_f_one_b_order(const PipelineSizes& sizes, int rank);
PipelineOrder interleaved_order(const PipelineSizes& sizes, int rank);
PipelineOrder zb1p_order(const PipelineSizes& sizes, int rank);
PipelineOrder zbv_order(const PipelineSizes& sizes, int rank);

}  // namespace levin::detail
