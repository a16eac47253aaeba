#include "levin/data/loader.h"

#include "levin/core/error.h"

namespace levin::detail {

LoaderPosition::LoaderPosition(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size,
                               bool repeat)
    : dataset_size_(dataset_size),
      options_(options),
      sampler_{.shuffle = options.shuffle,
               .seed = options.seed,
               .drop_last = options.drop_last,
               .repeat = repeat,
               .rank = rank,
               .world_size = world_size,
               .sampler = options.sampler} {
  check_loader_options(options);
  LEVIN_CHECK(dataset_size >= 1, "[data] the dataset is empty");
  LEVIN_CHECK(batches() >= 1 || !(options.drop_last || repeat),
              "[data] drop_last leaves nothing: ", samples_per_rank(dataset_size_, sampler_),
              " samples per rank do not fill one batch of ", options.batch_size);
}

int64_t LoaderPosition::batches() const {
  const int64_t samples = samples_per_rank(dataset_size_, sampler_);
  return options_.drop_last ? samples / options_.batch_size : (samples + options_.batch_size - 1) / options_.batch_size;
}

void LoaderPosition::begin() {
  if (inside_) set_epoch(epoch_ + 1);  // the pass before was left early
  inside_ = true;
}

LoaderPosition::Order LoaderPosition::order() const {
  return std::make_shared<const std::vector<int64_t>>(sample_order(dataset_size_, sampler_, epoch_));
}

bool LoaderPosition::next() {
  if (batch_ >= batches()) {
    set_epoch(epoch_ + 1);
    return false;
  }
  ++batch_;
  return true;
}

void LoaderPosition::set_epoch(int64_t epoch) {
  sampler_.start = 0;
  seek(epoch, 0);
}

void LoaderPosition::seek(int64_t epoch, int64_t batch) {
  if (epoch != epoch_) sampler_.start = 0;
  epoch_ = epoch;
  batch_ = batch;
  inside_ = false;
  ++jumps_;
}

StateDict LoaderPosition::state_dict() const {
  return {{"epoch", epoch_},
          {"samples", sampler_.start + batch_ * options_.batch_size * sampler_.world_size},
          {"dataset_size", dataset_size_},
          {"seed", static_cast<int64_t>(options_.seed)}};
}

void LoaderPosition::load_state_dict(const StateDict& state) {
  LEVIN_CHECK(state.at("dataset_size").to_int() == dataset_size_, "[data] the state is of a dataset with ",
              state.at("dataset_size").to_int(), " samples, this one has ", dataset_size_);
  const bool random = options_.sampler.empty() ? options_.shuffle : options_.sampler.is_random();
  LEVIN_CHECK(!random || state.at("seed").to_int() == static_cast<int64_t>(options_.seed),
              "[data] the state is of seed ", state.at("seed").to_int(), ", this loader shuffles with seed ",
              options_.seed);
  // Samples, not batches: another number of ranks or another batch size resumes at the same place of the epoch.
  const int64_t samples = state.at("samples").to_int(), epoch = state.at("epoch").to_int();
  LEVIN_CHECK(samples >= 0, "[data] the state is ", samples, " samples into the epoch");
  set_epoch(epoch);
  // The last batch may be a short one, and some samples may have come twice.
  if (samples >= (options_.sampler.empty() ? dataset_size_ : options_.sampler.count(dataset_size_)))
    return seek(epoch, batches());
  // Where these batches do not reach the sample, all of them begin that much later.
  const int64_t step = options_.batch_size * sampler_.world_size;
  sampler_.start = samples % step;
  seek(epoch, samples / step);
}

std::optional<SharedOrder> LoaderPosition::shared_order() const {
  if (sampler_.world_size == 1) return {};
  const bool random = options_.sampler.empty() ? options_.shuffle : options_.sampler.is_random();
  SharedOrder shared{.dataset_size = dataset_size_,
                     .batch_size = options_.batch_size,
                     .seed = random ? options_.seed : 0,
                     .rest = static_cast<uint64_t>(random)};
  // Two samplers of one name may have other weights or indices.
  if (!options_.sampler.empty())
    for (const auto index : options_.sampler.order(dataset_size_, options_.seed, epoch_))
      shared.rest = (shared.rest ^ static_cast<uint64_t>(index)) * 0x9e3779b97f4a7c15;
  return shared;
}

}  // namespace levin::detail
