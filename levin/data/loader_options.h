#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/data/sampler.h"

namespace levin {

/// How many threads make batches: a number, or "auto".
class NumWorkers {
 public:
  NumWorkers() = default;
  NumWorkers(int count);                                                // NOLINT(google-explicit-constructor)
  NumWorkers(const char* word) : NumWorkers(std::string_view(word)) {}  // NOLINT(google-explicit-constructor)
  NumWorkers(std::string_view word);                                    // NOLINT(google-explicit-constructor)

  bool is_auto() const { return count_ < 0; }
  /// Only of a number.
  int count() const { return count_; }

 private:
  int count_ = -1;
};

struct LoaderOptions {
  /// Samples of a batch, on each rank.
  int64_t batch_size = 1;
  /// A new order each epoch.
  bool shuffle = false;
  /// Leave out a last batch that is not full.
  bool drop_last = false;
  /// The order, and the random numbers of every sample, are functions of seed and epoch.
  uint64_t seed = 0;
  /// Threads that make batches ahead of time. 0: the caller makes each batch when it asks for it. "auto": as many as
  /// this process may use cores, shared with the other ranks of the machine; none for a dataset that hands out whole
  /// batches from memory. The batches are the same for any number.
  NumWorkers num_workers = {};
  /// Batches made ahead of the one in use, besides those that are needed to keep all threads busy.
  int64_t prefetch_factor = 2;
  /// Batches in pinned memory, from which a GPU fetches at full speed while it computes. Defaults to true where batches
  /// go to a GPU, else false.
  std::optional<bool> pin_memory = {};
  /// Keep the threads between passes.
  bool persistent_workers = true;
  /// In place of `shuffle`: weighted, buffered, or one's own.
  Sampler sampler = {};
  /// "stop": a sample that cannot be made is an Error when its batch is due. "skip": it is left out of its batch, and
  /// counted (DataLoader::stats().skipped). A batch of bad samples alone is left out; where the number of batches is
  /// fixed (several ranks, Trainer's training, combined loaders) the next good sample of the epoch stands in for it.
  std::string bad_samples = "stop";
  /// Who decodes JPEG images: "cpu", "gpu" (nvJPEG, for batches that go to a GPU) or "auto" (the GPU where it can). Of
  /// an ImageDataset whose transform is made of crops, resizes, flips and normalize, which then run on the GPU too,
  /// with the same random numbers; another one is an Error with "gpu". Files that nvJPEG does not take, and all where
  /// there is no GPU or no nvJPEG, are decoded by the CPU.
  std::string decode = "cpu";
  /// With `decode` = "gpu" or "auto": the fraction of the images that threads decode nonetheless, beside the GPU, so
  /// that neither waits for the other; 0 to 1. Which ones they are is fixed by their places in the batch.
  double decode_on_cpu = 0;
  /// Seconds that one batch may keep the caller waiting; 0: no limit, but a line every half minute that says what for.
  double timeout = 0;
};

}  // namespace levin
