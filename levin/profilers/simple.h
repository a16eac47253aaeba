#pragma once

#include <chrono>
#include <unordered_map>
#include <vector>

#include "levin/profilers/profiler.h"

namespace levin {

struct SimpleProfilerOptions {
  /// The folder of the file; by default that of the run's log.
  std::filesystem::path dirpath = {};
  /// Writes the report to dirpath/STAGE-filename-RANK.txt instead of stdout.
  std::string filename = {};
  /// Adds the columns of calls and of percentage of the time since the profiler was made.
  bool extended = true;
};

/// How long each action took, on average and in all, in Lightning's table. A sum and a count are kept per action,
/// whatever the length of the run.
class SimpleProfiler : public Profiler {
 public:
  explicit SimpleProfiler(SimpleProfilerOptions options = {});

  ActionId register_action(std::string name) override;
  void start(ActionId action) override;
  void stop(ActionId action) override;
  std::string summary() const override;

  /// Adds one run of an action that was measured elsewhere.
  void add(ActionId action, std::chrono::nanoseconds duration);
  /// The report of a run that took `total`.
  std::string summary(std::chrono::nanoseconds total) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Action {
    std::string name;
    Clock::time_point start = {};
    bool is_running = false;
    int64_t calls = 0;
    std::chrono::nanoseconds sum{0};
  };

  Action& at(ActionId action, const char* what);

  bool extended_;
  Clock::time_point made_ = Clock::now();
  std::vector<Action> actions_;
  std::unordered_map<std::string, int32_t> index_;
  /// Actions that ended at least once, in the order in which they first did.
  std::vector<size_t> recorded_;
};

}  // namespace levin
