#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace levin {

class Collective;

/// Data that a rank has sent to others, by operation: "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
/// "broadcast", "send". Differences of two are what was sent in between. The few numbers by which ranks check their
/// calls are not in it; a captured step counts once, when it is captured.
///
///     const auto before = levin::traffic(fabric.strategy().group());
///     train_step();
///     const auto step = levin::traffic(fabric.strategy().group()) - before;
///     fabric.print(step.sent(), " bytes");
struct Traffic {
  struct Operation {
    int64_t calls = 0;
    /// Of the tensors that were given to it.
    int64_t bytes = 0;
    /// What this rank sends for it: by the algorithm of the backend, as a ring. Gloo's reduce_scatter is an all-reduce.
    int64_t sent = 0;
  };
  std::map<std::string, Operation, std::less<>> operations;

  /// Of all operations.
  int64_t sent() const;
  Traffic operator-(const Traffic& before) const;
};

/// Since this rank has joined, in all groups of the run that `group` is of: what is split off from a group counts with
/// it. Nothing for a single process.
Traffic traffic(const Collective& group);

namespace detail {

/// Counts for the groups of a run. Any thread may call.
class TrafficCounter {
 public:
  void add(std::string_view operation, int64_t bytes, int64_t sent);
  Traffic read() const;

 private:
  mutable std::mutex mutex_;
  Traffic traffic_;
};

/// What a rank of a ring of `size` sends, for tensors of `bytes`.
int64_t sent_in_ring(std::string_view operation, int64_t bytes, int size);

}  // namespace detail
}  // namespace levin
