#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::detail {

class Run;

/// Watches a run and says at its end what would make it faster: waiting for data, waiting for the device, idle tensor
/// cores, unused memory. Costs two looks at the clock per batch; nothing in a barebones run.
class Advice {
 public:
  Advice();
  ~Advice();

  void start(Run& run);
  void before_fetch(Run& run) {
    if (is_on_) begin_fetch(run);
  }
  void after_fetch() {
    if (is_on_) waited_ += Clock::now() - fetch_;
  }
  /// One line each, for people.
  std::vector<std::string> hints(Run& run);

 private:
  using Clock = std::chrono::steady_clock;
  class SyncCount;

  void begin_fetch(Run& run);

  bool is_on_ = false;
  int64_t batches_ = 0;
  Clock::time_point start_, fetch_;
  Clock::duration waited_{0};
  std::unique_ptr<SyncCount> counting_;
  double syncs_per_batch_ = 0;
};

}  // namespace levin::detail
