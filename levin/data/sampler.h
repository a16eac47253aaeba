#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// In which order the samples of a data set come, over all ranks: a function of the size, the seed and the epoch, so
/// that any process can work it out at any time. A small handle; an empty one means "as LoaderOptions says".
///
///     levin::make_loader(data, {.batch_size = 64, .sampler = levin::Sampler::weighted(weights, 10000)});
class Sampler {
 public:
  /// Indices in [0, size); as many as `count(size)` says.
  using Order = std::function<std::vector<int64_t>(int64_t size, uint64_t seed, int64_t epoch)>;
  using Count = std::function<int64_t(int64_t size)>;

  Sampler() = default;
  /// One of the program's own. Without a count it gives as many as there are samples.
  Sampler(std::string name, Order order, Count count = {}, bool random = true);

  /// 0, 1, 2, ...
  static Sampler sequential();
  /// Every sample once, in an order of its own for each epoch.
  static Sampler shuffled();
  /// `count` draws by weight (torch's WeightedRandomSampler): one weight a sample, none negative, not all zero. Without
  /// replacement no sample comes twice, and at least `count` weights must not be zero.
  static Sampler weighted(std::vector<double> weights, int64_t count, bool replacement = true);
  /// Near-random at near-sequential reading, for data that lies on a slow disk: samples are read in order into a buffer
  /// and leave it at random (WebDataset's and tf.data's shuffle). Every sample comes once; one that stands at i comes
  /// no earlier than i - buffer.
  static Sampler buffered(int64_t buffer);
  /// Every sample once, those of like length together, so that batches are padded little (transformers'
  /// group_by_length): the shuffled samples in groups of `group`, each from the longest to the shortest; the longest of
  /// all comes first. A group of some 50 batches keeps the order random enough. `lengths` has one entry a sample.
  static Sampler by_length(std::vector<int64_t> lengths, int64_t group);
  /// These, in this order, every epoch.
  static Sampler subset(std::vector<int64_t> indices);

  bool empty() const { return !impl_; }
  const std::string& name() const;
  /// Whether each epoch has an order of its own.
  bool is_random() const;
  int64_t count(int64_t size) const;
  /// An Error when the order is not of that count, or names a sample that is not there.
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

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
  /// Samples of the epoch, over all ranks, that are left out at its start: given out before, by other ranks or in
  /// batches of another size.
  int64_t start = 0;
  /// In place of `shuffle`.
  Sampler sampler = {};
};

/// The indices of one rank in one epoch: a pure function of the arguments, so that any process can work it out at any
/// time. Rank r takes every world_size-th index from r on (torch's DistributedSampler), so that step by step the ranks
/// together see what one process with a batch world_size times as large would.
std::vector<int64_t> sample_order(int64_t dataset_size, const SamplerOptions& options, int64_t epoch);

/// How many samples that is, without working it out.
int64_t samples_per_rank(int64_t dataset_size, const SamplerOptions& options);

}  // namespace levin
