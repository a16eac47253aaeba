#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "levin/profilers/memory_history.h"
#include "levin/profilers/profiler.h"

namespace levin {

class TraceSpan;

struct MemoryProfilerOptions {
  /// The folder of snapshots and report; by default that of the run's log.
  std::filesystem::path dirpath = {};
  /// The name of snapshots, and of the report, which goes to STAGE-filename-RANK.txt. Defaults to "memory", and the
  /// report to stdout.
  std::string filename = {};
  /// Allocations and frees that a snapshot shows; older ones are forgotten.
  int64_t max_entries = 100'000;
  /// Rows of the report.
  int64_t row_limit = 15;
  /// Snapshots have the functions of the program that allocated, with lines where it has debug information (-g).
  bool with_stack = false;
};

/// Who holds memory in a run: the history of the allocator with units and operators. At the end of a loop it writes a
/// snapshot for PyTorch's memory viewer and a table of the largest holders at the peak. When memory runs out it does
/// so before the error.
class MemoryProfiler : public Profiler {
 public:
  explicit MemoryProfiler(MemoryProfilerOptions options = {});
  ~MemoryProfiler() override;

  ActionId register_action(std::string name) override;
  void start(ActionId action) override;
  void stop(ActionId action) override;
  std::string summary() const override;

  void begin_loop(const ProfiledRun& run) override;
  void step() override;
  void end_loop() override;

 private:
  struct Open {
    ActionId action;
    std::unique_ptr<TraceSpan> span;
  };

  void write(const char* what);
  void out_of_memory(const std::string& line);

  MemoryProfilerOptions options_;
  std::vector<std::string> actions_;
  std::unordered_map<std::string, int32_t> index_;
  std::vector<Open> open_;
  std::unique_ptr<MemoryHistory> history_;
  std::vector<std::filesystem::path> written_;
  int rank_of_run_ = 0, dumps_ = 0;
  int64_t peak_ = 0;
  std::vector<MemoryHolder> at_peak_;
};

/// Lines with size, fraction, blocks and name of the largest holders.
std::string memory_table(const std::vector<MemoryHolder>& holders, int64_t row_limit = -1);

}  // namespace levin
