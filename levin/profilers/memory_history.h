#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

namespace levin {

/// How much memory something holds.
struct MemoryHolder {
  /// A unit's path, with "(backward)" or "(parameters)" behind it, or what ran where no unit did:
  /// "Optimizer.step#AdamW.step".
  std::string name;
  int64_t bytes = 0;
  int64_t blocks = 0;
};

struct MemoryHistoryOptions {
  /// Allocations and frees that are kept; older ones are forgotten.
  int64_t max_entries = 100'000;
  /// Snapshots have the functions of the program that allocated, with lines where it has debug information (-g).
  bool with_stack = false;
};

/// Records every allocation of a device while it lives, with the operators, spans and the unit in which it was made.
/// Snapshots are files for PyTorch's memory viewer (pytorch.org/memory_viz, or torch/cuda/_memory_viz.py).
///
///     levin::MemoryHistory history(device);
///     history.watch(*model);
///     step();
///     history.write_snapshot("snapshot.pickle");
///     for (const auto& holder : history.holders()) ...
///
/// On the CPU it counts what is allocated after it was made. There is one of each kind of device in a process.
class MemoryHistory {
 public:
  explicit MemoryHistory(c10::Device device, MemoryHistoryOptions options = {});
  ~MemoryHistory();
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  /// Its units name allocations; its parameters and buffers are counted as theirs.
  void watch(torch::nn::Module& model);
  /// A step is over: nodes of its graph are gone.
  void end_step();
  /// Called when an allocation finds no room, before the error, with a line that says so.
  void set_on_out_of_memory(std::function<void(const std::string& line)> handle);

  int64_t allocated() const;
  int64_t peak() const;
  /// Who holds memory now, or held it at the peak (to within 1 % of it); the largest first.
  std::vector<MemoryHolder> holders() const;
  std::vector<MemoryHolder> holders_at_peak() const;
  void write_snapshot(const std::filesystem::path& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin
