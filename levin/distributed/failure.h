#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "levin/core/worker_thread.h"

namespace c10d {
class Store;
}

namespace levin {

/// What one rank says when a group ends before its time.
struct FailureReport {
  enum class Kind : char {
    /// It was waiting in an operation that failed; the text names the operation.
    kWaiting = 'w',
    /// As above, and it waited for as long as it may; the text ends " within 2 s".
    kTimedOut = 't',
    /// It found something wrong that concerns all; the text is the line for all, with "{ranks}" for those who found it.
    kShared = 's',
    /// It failed on its own; the text is its line.
    kFailed = 'f',
    /// It is done and has left.
    kLeft = 'l',
  };
  Kind kind = Kind::kWaiting;
  std::string text;
};

/// The line that reports (by rank; none: nothing was heard) and the ranks whose connection is gone add up to. `cause`
/// is used when they explain nothing. `names` are the ranks as they are called in the run.
std::string explain_failure(std::string_view operation, std::span<const std::optional<FailureReport>> reports,
                            std::span<const int> closed, std::span<const int> names, std::string_view cause);

/// "rank 1", "ranks 0 and 1", "ranks 0-3", "ranks 0, 2-4 and 7".
std::string rank_list(std::span<const int> ranks);

/// How the ranks of a group come to one line when something fails: each posts what it knows to the store, ends its own
/// pending operations and closes its connections, which ends those of the others; then all take the same line.
class FailureExchange {
 public:
  /// What the group can do; neither throws.
  struct Hooks {
    /// Ends pending operations and closes the connections.
    std::function<void()> abort;
    /// Ranks of the group whose connection is gone.
    std::function<std::vector<int>()> closed_peers;
    /// "rank 3 has been in forward for 20 s", of a rank of the run; empty where nothing is known.
    std::function<std::string(int)> doing = {};
  };

  /// `patience`: how long to wait, once something has failed, for ranks that are busy elsewhere to say what they know.
  FailureExchange(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> names, Hooks hooks,
                  std::chrono::milliseconds patience, std::shared_ptr<FailureExchange> parent);

  /// Throws when the group has failed before: the operation and the first reason.
  void check(std::string_view operation) const;
  /// Throws in a forked child of the rank.
  void check_process(std::string_view operation) const;
  bool failed() const;
  /// Ends the group and throws the line on which all ranks agree. Takes at most a few seconds.
  [[noreturn]] void fail(std::string_view operation, const FailureReport& report, std::string_view cause = {});
  /// Ends the group because of this rank's own error, without waiting for the others.
  void leave(const FailureReport& report) noexcept;
  /// As above, while an exception is under way: the reason is that of the enclosing group, where that has ended.
  void leave_by_exception() noexcept;
  /// Ends the group, from a thread of its own, with a line that concerns all. What is pending throws the line.
  void conclude(const std::string& line, bool store_answers) noexcept;
  /// Ends what is pending; who waits in it then learns why the group has ended.
  void interrupt() noexcept { hooks_.abort(); }
  /// Why the group has ended; empty while it has not.
  std::string reason() const;
  /// Waits until every rank has left or read why the group ended, or the time is up: for the one that serves the store.
  void wait_for_others(std::chrono::milliseconds timeout) noexcept;
  /// Whether some rank has posted that it failed.
  bool others_failed() noexcept;
  static bool any_failed(c10d::Store& store);
  /// Ranks of the group whose connection is gone.
  std::vector<int> closed_peers() const { return hooks_.closed_peers(); }

 private:
  std::string late_ranks(std::span<const std::optional<FailureReport>> reports) const;
  std::string agree(std::string_view operation, std::span<const int> closed, std::string_view cause);
  void post(const FailureReport& report);
  void say_done() noexcept;
  void end_with(const FailureReport& report) noexcept;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const std::vector<int> names_;
  const Hooks hooks_;
  const std::chrono::milliseconds patience_;
  const std::shared_ptr<FailureExchange> parent_;
  /// A child of fork() has the connections of the rank, and may say nothing in its name.
  const detail::HomeProcess home_;
  mutable std::mutex mutex_;
  /// What this rank says of the end; no text while the group has not ended.
  FailureReport ended_;
};

/// Looks at the store from a thread of its own and runs `react` once when some rank has failed. For backends whose
/// pending operations do not end when a peer's connections close. `each_turn` is called before each look.
class FailureWatcher {
 public:
  FailureWatcher(std::shared_ptr<FailureExchange> failures, std::function<void()> react,
                 std::chrono::milliseconds every, std::function<void()> each_turn = {});
  ~FailureWatcher();
  FailureWatcher(const FailureWatcher&) = delete;
  FailureWatcher& operator=(const FailureWatcher&) = delete;

 private:
  struct State;
  detail::ProcessBound<State> state_;
};

}  // namespace levin
