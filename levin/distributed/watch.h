#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "levin/distributed/failure.h"
#include "levin/distributed/trace.h"

namespace c10d {
class Store;
}

namespace levin::detail {

struct WatchOptions {
  /// How often a rank says that it is alive; three times and more within `silence`. None: 1 s, or as often as
  /// `warn_after` and `silence` need.
  std::optional<std::chrono::milliseconds> beat = {};
  /// An operation that takes longer is looked at: do the ranks wait for each other? At least three beats; at most
  /// `warn_after` and `silence`.
  std::chrono::milliseconds stall = std::chrono::seconds(3);
  /// After so long a line says for whom this rank waits.
  std::chrono::milliseconds warn_after = std::chrono::seconds(30);
  /// A rank that is waited for and says nothing for so long ends the group.
  std::chrono::milliseconds silence = std::chrono::seconds(30);
  /// The rank that serves the store; -1: a launcher.
  int serves_store = -1;
};

/// Tells the other ranks, through the store, that this one is alive and what it does, and looks at theirs when an
/// operation of this one waits. Ranks that wait for each other in different operations, and ranks that have fallen
/// silent, end the groups of this rank with a line that names them.
///
/// One thread decides and one speaks to the store, since a store that is gone may never answer. Between two waits this
/// costs a message of some hundred bytes a second.
class RankWatch {
 public:
  RankWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, WatchOptions options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// A group that this rank is in, until either is gone.
  void add(std::weak_ptr<const GroupTrace> trace, std::weak_ptr<FailureExchange> failures);
  /// Where in the program this rank is, and what it does there.
  void set_place(std::string_view place);
  void set_doing(std::string_view doing);
  std::string place() const;
  /// "rank 3 has been in forward for 20 s", as this rank read it last; empty while it has not.
  std::string describe(int rank) const;
  const WatchOptions& options() const { return options_; }

 private:
  struct Talk;
  void run();
  void look();
  void warn(const RankSnapshot& own, const GroupSnapshot::Operation& wait);
  void end_groups(const std::string& line, bool store_answers);

  const int rank_;
  const WatchOptions options_;
  const std::shared_ptr<Talk> talk_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  // Of the deciding thread alone.
  std::string suspected_;
  int64_t judged_ = 0;
  /// How often the others had been read when the wait began.
  int64_t read_before_ = 0;
  double next_warning_ = 0;
  /// Silence is counted from reading to reading, and of a long gap between two little: while this process or the store
  /// was stopped, nobody could be heard of.
  struct Pulse {
    int64_t tick = -1;
    double silent = 0;
  };
  std::vector<Pulse> pulses_;
  std::chrono::steady_clock::time_point last_turn_, last_judged_, last_answer_;
  /// Seconds without an answer of the store, counted likewise.
  double unanswered_ = 0;
  std::thread thread_;
};

}  // namespace levin::detail
