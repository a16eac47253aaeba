#include "levin/nn/tensor/region.h"

#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/nn/tensor/functions.h"

namespace levin::detail {
namespace {

/// The dimension of tokens in [B, T, D].
constexpr int64_t kSequenceDim = 1;

/// Spreads the bits (the finalizer of SplitMix64).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class EndOfRandom {
 public:
  explicit EndOfRandom(RegionRandom& random) : random_(random) {}
  ~EndOfRandom() { random_.end(); }
  EndOfRandom(const EndOfRandom&) = delete;
  EndOfRandom& operator=(const EndOfRandom&) = delete;

 private:
  RegionRandom& random_;
};

/// Changes the first floating tensor among the inputs.
template <class F>
Tensor change_first(Call& call, const F& change) {
  Tensor first;
  call.each_input([&](Tensor& input) {
    if (first.defined() || !input.is_floating_point()) return;
    first = input = change(input);
  });
  LEVIN_CHECK(first.defined(), "[tensor_parallel] ", call.module().name(), " has no input to split");
  return first;
}

}  // namespace

void RegionRandom::begin(c10::Device device) {
  if (!device.is_cpu() && !device.is_cuda()) return;
  generator_ = at::globalContext().defaultGenerator(device);
  uint64_t drawn = 0;
  if (device.is_cuda()) {
    const std::lock_guard lock(generator_.mutex());
    seed_ = generator_.current_seed();
    offset_ = generator_.get_offset();
    drawn = mixed(seed_) + offset_;
  } else {
    auto number = at::empty({1}, at::kLong);
    number.random_(generator_);
    drawn = static_cast<uint64_t>(number.item<int64_t>());
    const std::lock_guard lock(generator_.mutex());
    outer_ = generator_.get_state();
  }
  const std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(mixed(drawn + 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(rank_ + 1)));
}

void RegionRandom::end() {
  if (!generator_.defined()) return;
  const std::lock_guard lock(generator_.mutex());
  if (outer_.defined()) {
    generator_.set_state(outer_);
    outer_.reset();
  } else {
    generator_.set_current_seed(seed_);
    generator_.set_offset(offset_ + 4);  // the least that a kernel of torch takes: no two regions are alike
  }
  generator_ = {};
}

void EnterRegion::around(Call& call) {
  const auto x = change_first(call, [&](const Tensor& input) {
    return region_->sequence ? nn::gathered_for_region(input, kSequenceDim, region_->ranks)
                             : nn::copied_to_ranks(input, region_->ranks);
  });
  const EndOfRandom end(region_->random);
  // Where the sequence is split the block has random numbers of its own already.
  if (!region_->sequence && part_ && call.module().is_training() && part_->draws()) region_->random.begin(x.device());
  call.proceed();
}

void LeaveRegion::around(Call& call) {
  Tensor bias;
  if (bias_) bias = std::exchange(*bias_, {});
  try {
    call.proceed();
  } catch (...) {
    if (bias_) *bias_ = bias;
    throw;
  }
  if (bias_) *bias_ = bias;
  region_->random.end();
  call.each_output([&](Tensor& y) {
    y = region_->sequence ? nn::summed_part(y, kSequenceDim, region_->ranks) : nn::summed_over_ranks(y, region_->ranks);
    if (bias.defined()) y = y + bias.to(y.scalar_type());
  });
}

void SplitEmbedding::around(Call& call) {
  Tensor elsewhere;
  call.each_input([&](Tensor& ids) {
    if (elsewhere.defined() || ids.is_floating_point()) return;
    const auto place = ids - share_.rows.first;
    elsewhere = (place < 0) | (place >= share_.rows.count);
    ids = place.masked_fill(elsewhere, 0);
  });
  call.proceed();
  call.each_output(
      [&](Tensor& y) { y = nn::summed_over_ranks(y.masked_fill(elsewhere.unsqueeze(-1), 0), share_.ranks); });
}

void BeginSequence::around(Call& call) {
  change_first(call, [&](const Tensor& x) { return nn::part_of_rank(x, kSequenceDim, ranks_); });
  call.proceed();
}

void EndSequence::around(Call& call) {
  call.proceed();
  bool done = false;
  call.each_output([&](Tensor& y) {
    if (done) return;
    const std::vector<int64_t> counts(static_cast<size_t>(ranks_->size()), y.size(kSequenceDim));
    y = nn::gathered_from_ranks(y, kSequenceDim, counts, ranks_);
    done = first_only_;
  });
}

void OwnRandom::around(Call& call) {
  c10::Device device = c10::kCPU;
  call.each_input([&](Tensor& input) { device = input.device(); });
  const EndOfRandom end(random_);
  if (call.module().is_training()) random_.begin(device);
  call.proceed();
}

}  // namespace levin::detail
