#pragma once

#include <cstdint>
#include <vector>

namespace levin {

/// Which samples a rank sees, and in which order.
struct SamplerOptions {
  bool shuffle = false;
  uint64_t seed = 0;
  /// When the samples do not divide by the ranks: drop the rest, or repeat some so that every rank has as many.
  bool drop_last = false;
  /// False (and not drop_last): the first ranks have one sample more than the others instead, and no sample comes
  /// twice. For evaluation; ranks that communicate at every batch must expect different numbers of batches.
  bool repeat = true;
  int rank = 0;
  int world_size = 1;
};

/// The indices of one rank in one epoch: a pure function of the arguments, so that any process can work it out at any
/// time. Rank r takes every world_size-th index from r on (torch's DistributedSampler), so that step by step the ranks
/// together see what one process with a batch world_size times as large would.
std::vector<int64_t> sample_order(int64_t dataset_size, const SamplerOptions& options, int64_t epoch);

/// How many samples that is, without working it out.
int64_t samples_per_rank(int64_t dataset_size, const SamplerOptions& options);

}  // namespace levin
