#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"

namespace levin {

struct SeedOptions {
  /// Told to data loaders of child processes through PL_SEED_WORKERS; Levin's own loader needs no telling.
  bool workers = false;
  /// Print the seed.
  bool verbose = true;
};

/// Seeds the generators of the CPU and of every device that is there, and returns the seed. Without one it is taken
/// from LEVIN_GLOBAL_SEED or PL_GLOBAL_SEED, else it is 0. Both variables are set, so that child processes inherit the
/// seed. A seed outside 0..4294967295, or a variable that is not a number, is an Error.
int64_t seed_everything(std::optional<int64_t> seed = {}, SeedOptions options = {});

/// Seeds again with what seed_everything() set last; does nothing when it never ran.
void reset_seed();

/// Where random generators stand, as tensors that can be saved. Each rank has its own.
///
///     auto before = levin::RngState::capture();
///     auto noise = torch::randn({3});
///     before.restore();                            // the same noise again
struct RngState {
  /// The CPU's default generator.
  Tensor cpu;
  /// One per device, by name ("cuda:0"); filled by those who know the devices.
  std::vector<std::pair<std::string, Tensor>> devices;

  /// The CPU's generator alone.
  static RngState capture();
  /// Sets the CPU's generator. Does it last: making a loader or a model after it would draw from it.
  void restore() const;

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
};

/// Puts the CPU's generator back at the end of a scope: what happens inside leaves no trace in later random numbers.
class IsolateRng {
 public:
  IsolateRng() : state_(RngState::capture()) {}
  ~IsolateRng();
  IsolateRng(const IsolateRng&) = delete;
  IsolateRng& operator=(const IsolateRng&) = delete;

 private:
  RngState state_;
};

}  // namespace levin
