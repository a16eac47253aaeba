#pragma once

#include "levin/core/random.h"

namespace levin::detail {

/// While it lives, torch's random functions of this thread that name no generator (torch::rand, tensor.uniform_, ...)
/// on the CPU draw from numbers that belong to `random`, not from the generator of the process. So a dataset that uses
/// them gives the same sample whichever thread asks, and takes no random number away from the training.
class SampleRandomScope {
 public:
  explicit SampleRandomScope(Random& random);
  ~SampleRandomScope();
  SampleRandomScope(const SampleRandomScope&) = delete;
  SampleRandomScope& operator=(const SampleRandomScope&) = delete;

 private:
  Random* outer_;
  bool outer_seeded_;
  bool was_included_;
};

}  // namespace levin::detail
