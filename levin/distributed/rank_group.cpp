#include "levin/distributed/rank_group.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/distributed/launcher/error_lines.h"
#include "levin/distributed/save_mark.h"

namespace levin::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// How long to look for the cause after the first failure: the cause and its consequences come close together.
constexpr auto kCollect = 300ms;
constexpr auto kCollectAcrossNodes = 600ms;
// How long to wait for the end of a rank that others blame: it may still be on its way out.
constexpr auto kCollectBlamed = 3s;
// How long an error line waits for those of other ranks.
constexpr auto kErrorHold = 500ms;
// How often ranks that write a checkpoint are looked at.
constexpr auto kLookAtSaves = 100ms;
// How long output may still come from processes that ranks have left behind.
constexpr auto kDrain = 500ms;
// How long a killed process may take to go; one that hangs in the kernel never does.
constexpr auto kKill = 2s;

struct Rank {
  Rank(const RankPlan& plan, Console& console)
      : rank(plan.rank),
        out(console, Stream::kOut, plan.out),
        err(console, Stream::kErr, plan.err),
        save_mark(plan.save_mark),
        process(plan.process) {}

  int rank;
  OutputRelay out;
  OutputRelay err;
  std::string save_mark;
  Process process;
  bool ended = false;
  bool ended_well = false;
  bool blamed = false;
};

class RankGroup {
 public:
  RankGroup(const GroupSpec& spec, Console& console, SignalPipe& signals, NodeLink* link)
      : spec_(spec), console_(console), signals_(signals), link_(link) {
    ranks_.reserve(spec.ranks.size());
    for (const auto& plan : spec.ranks) ranks_.push_back(std::make_unique<Rank>(plan, console));
  }

  std::optional<RankFailure> run() {
    for (;;) {
      wait();
      console_.write_ready();
      relay();
      take_signals();
      if (link_) take_news();
      note_exits();
      advance();
      if (Clock::now() >= errors_due()) show_errors();
      if (is_over()) break;
    }
    for (auto& rank : ranks_) {
      // After a failure nothing of the attempt may stay; after success a rank may leave a server or the like behind.
      if (!cause_) rank->process.release_group();
      rank->out.finish();
      rank->err.finish();
    }
    show_errors();
    if (!killed_.empty())
      console_.line(Stream::kErr, fmt::format("levin: rank{} {} did not end within {:.3g} s and {} killed",
                                              killed_.size() > 1 ? "s" : "", fmt::join(killed_, ", "),
                                              std::chrono::duration<double>(spec_.stop_grace).count(),
                                              killed_.size() > 1 ? "were" : "was"));
    if (cause_) cause_->told = told_at_ == console_.writes(Stream::kErr);
    return cause_;
  }

 private:
  enum class Phase { kRunning, kCollecting, kEnding, kKilling };

  void wait() {
    std::vector<pollfd> polls{{signals_.fd(), POLLIN, 0}};
    if (link_) polls.push_back({link_->fd(), POLLIN, 0});
    console_.add_to(polls);
    for (auto& rank : ranks_) {
      add_output(polls, rank->process.out(), rank->out);
      add_output(polls, rank->process.err(), rank->err);
    }
    auto until = std::min({deadline_, look_at_saves_, console_.next_turn(), errors_due()});
    if (drain_until_ && !drained()) until = std::min(until, *drain_until_);
    auto patience = until == Clock::time_point::max() ? 60s : std::max(Clock::duration(0), until - Clock::now());
    if (link_) patience = std::min<Clock::duration>(patience, 5s);  // a link that hangs makes no news
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
    ::poll(polls.data(), polls.size(), static_cast<int>(ms));
  }

  static void add_output(std::vector<pollfd>& polls, const Fd& fd, const OutputRelay& relay) {
    if (fd && !relay.must_wait()) polls.push_back({fd.get(), POLLIN, 0});
  }

  void relay() {
    for (auto& rank : ranks_) {
      if (!rank->out.must_wait()) read_some(rank->process.out(), rank->out);
      if (!rank->err.must_wait()) read_some(rank->process.err(), rank->err);
    }
  }

  /// Returns whether there may be more at once.
  bool read_some(Fd& fd, OutputRelay& relay) {
    if (!fd) return false;
    if (relay.pointless()) {
      fd.reset();  // the rank learns, as if it wrote to the closed pipe itself
      return false;
    }
    const auto got = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (got > 0) {
      relay.feed({buffer_.data(), static_cast<size_t>(got)});
      return true;
    }
    if (got == 0) {
      relay.finish();
      fd.reset();
    }
    return false;
  }

  Clock::time_point errors_due() const {
    auto due = Clock::time_point::max();
    for (const auto& rank : ranks_)
      if (const auto since = rank->err.held_since()) due = std::min(due, *since + kErrorHold);
    return due;
  }

  void show_errors() {
    std::vector<HeldError> held;
    for (auto& rank : ranks_)
      if (rank->err.held_since()) held.push_back({rank->rank, rank->err});
    // When the run is ending, the rest of the ranks may still say what has been said.
    levin::detail::show_errors(held, console_, shown_errors_, is_ending());
  }

  void take_signals() {
    for (const int signal : signals_.take()) {
      if (signal == SIGCHLD) continue;
      if (is_ending()) {
        if (signal == SIGINT || signal == SIGQUIT) kill_all();
        continue;
      }
      add(RankFailure::stopped_by(signal, spec_.node, spec_.host));
      end(signal);
    }
  }

  void take_news() {
    auto news = link_->news();
    all_done_ = news.all_done;
    remote_ = std::move(news.failures);
    if (!news.error.empty() && !link_lost_) {
      link_lost_ = true;
      RankFailure lost;
      lost.kind = RankFailure::Kind::kLost;
      lost.host = "which serves the run";
      lost.status.code = 1;
      local_.push_back(lost);
    }
  }

  void note_exits() {
    for (auto& rank : ranks_) {
      if (rank->ended) continue;
      const auto status = rank->process.status();
      if (!status) continue;
      rank->ended = true;
      while (read_some(rank->process.err(), rank->err)) {
      }
      rank->ended_well = status->ok();
      if (status->ok() || is_ending()) continue;
      RankFailure failure;
      failure.node = spec_.node;
      failure.host = spec_.host;
      failure.rank = rank->rank;
      failure.pid = rank->process.pid();
      failure.status = *status;
      failure.last_lines = rank->err.last_lines();
      add(failure);
    }
    // A reader of ours that is slow does not count as silence of theirs.
    const bool held_up = std::any_of(ranks_.begin(), ranks_.end(),
                                     [](const auto& rank) { return rank->out.must_wait() || rank->err.must_wait(); });
    if (all_ended() && (!drain_until_ || (held_up && !is_ending()))) drain_until_ = Clock::now() + kDrain;
  }

  void add(const RankFailure& failure) {
    local_.push_back(failure);
    if (link_) link_->report(failure);
  }

  std::vector<RankFailure> all_failures() const {
    // Every node must name the same cause: the list in the store has one order for all.
    std::vector<RankFailure> all = remote_;
    all.insert(all.end(), local_.begin(), local_.end());
    return all;
  }

  /// Ranks of this node that ended well, and too early: others have failed for want of them.
  void note_early_leavers() {
    for (const auto& failure : all_failures()) {
      if (failure.kind != RankFailure::Kind::kRank) continue;
      for (const int blamed : blamed_ranks(failure))
        for (auto& rank : ranks_) {
          if (rank->rank != blamed || !rank->ended_well || rank->blamed) continue;
          rank->blamed = true;
          RankFailure early;
          early.kind = RankFailure::Kind::kLeftEarly;
          early.node = spec_.node;
          early.host = spec_.host;
          early.rank = rank->rank;
          early.pid = rank->process.pid();
          early.status = failure.status;
          add(early);
        }
    }
  }

  /// Whether all that is known is that ranks fail because of others, which have not ended yet.
  bool awaits_the_blamed() const {
    const auto all = all_failures();
    const auto& cause = root_cause(all);
    if (cause.kind != RankFailure::Kind::kRank || Clock::now() >= collecting_since_ + kCollectBlamed) return false;
    const auto blamed = blamed_ranks(cause);
    return !blamed.empty() && !(all_ended() && !link_);
  }

  std::vector<int> saving() const {
    std::vector<int> ranks;
    for (const auto& rank : ranks_)
      if (!rank->ended && is_marked(rank->save_mark)) ranks.push_back(rank->rank);
    return ranks;
  }

  /// A checkpoint that is being written is waited for: before the ranks are told to end, and before they are killed.
  void wait_for_saves() {
    look_at_saves_ = Clock::time_point::max();
    if (phase_ != Phase::kEnding || all_ended()) return;
    const auto now = Clock::now();
    const auto savers = now < save_until_ ? saving() : std::vector<int>{};
    if (!savers.empty()) {
      if (!std::exchange(said_saving_, true))
        console_.line(Stream::kErr, fmt::format("levin: waiting for rank{} {} to finish {} checkpoint (Ctrl-C again to "
                                                "stop now)",
                                                savers.size() > 1 ? "s" : "", fmt::join(savers, ", "),
                                                savers.size() > 1 ? "their" : "its"));
      deadline_ = now + spec_.stop_grace;
      look_at_saves_ = now + kLookAtSaves;
    } else if (held_) {
      tell(*std::exchange(held_, std::nullopt));
    }
  }

  void tell(int signal) {
    deadline_ = Clock::now() + spec_.stop_grace;
    for (auto& rank : ranks_) {
      rank->process.signal_group(signal);
      rank->process.signal_group(SIGCONT);  // one that is stopped could not heed it
    }
  }

  void advance() {
    const bool failed = !local_.empty() || !remote_.empty();
    if (phase_ == Phase::kRunning && failed) {
      phase_ = Phase::kCollecting;
      collecting_since_ = Clock::now();
      deadline_ = Clock::now() + (link_ ? kCollectAcrossNodes : kCollect);
    }
    if (phase_ == Phase::kCollecting) {
      note_early_leavers();
      if (Clock::now() >= deadline_ && awaits_the_blamed()) deadline_ = Clock::now() + kLookAtSaves;
      if (Clock::now() >= deadline_ || (!link_ && all_ended())) end(SIGTERM);
    }
    wait_for_saves();
    if (phase_ == Phase::kEnding && Clock::now() >= deadline_ && !all_ended()) {
      for (const auto& rank : ranks_)
        if (!rank->ended) killed_.push_back(rank->rank);
      kill_all();
    }
    if (is_ending() && all_ended())
      for (auto& rank : ranks_) rank->process.signal_group(SIGKILL);  // what they have left behind
    if (phase_ == Phase::kRunning && all_ended() && link_ && !reported_done_) {
      reported_done_ = true;
      link_->done();
    }
  }

  void end(int signal) {
    cause_ = root_cause(all_failures());
    show_errors();
    if (is_told())
      told_at_ = console_.writes(Stream::kErr);
    else
      console_.line(Stream::kErr, describe(*cause_, spec_.several_nodes));
    phase_ = Phase::kEnding;
    save_until_ = Clock::now() + spec_.save_grace;
    held_ = signal;
    wait_for_saves();
  }

  /// Whether one line has said all: what every rank that failed has said, and more than one of them.
  bool is_told() const {
    const auto found = shown_errors_.find(common_error(all_failures()));
    // Of a rank that fails alone among others it is worth telling which process it was.
    return found != shown_errors_.end() && (found->second > 1 || (ranks_.size() == 1 && !link_));
  }

  void kill_all() {
    if (phase_ == Phase::kKilling) return;
    phase_ = Phase::kKilling;
    deadline_ = Clock::now() + kKill;
    for (auto& rank : ranks_) rank->process.signal_group(SIGKILL);
  }

  bool is_ending() const { return phase_ == Phase::kEnding || phase_ == Phase::kKilling; }

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->ended; });
  }

  bool drained() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return !rank->process.out() && !rank->process.err(); });
  }

  bool is_over() {
    if (phase_ == Phase::kKilling && Clock::now() >= deadline_ && !all_ended()) {
      for (auto& rank : ranks_) {
        if (rank->ended) continue;
        console_.line(Stream::kErr, fmt::format("levin: rank {} (pid {}) hangs in the kernel and cannot be killed",
                                                rank->rank, rank->process.pid()));
        rank->process.abandon();
      }
      return true;
    }
    if (!all_ended() || phase_ == Phase::kCollecting) return false;
    if (!drained() && Clock::now() < *drain_until_) return false;
    return is_ending() || !link_ || all_done_;
  }

  const GroupSpec& spec_;
  Console& console_;
  SignalPipe& signals_;
  NodeLink* link_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::optional<Clock::time_point> drain_until_;
  std::vector<RankFailure> local_;
  std::vector<RankFailure> remote_;
  std::optional<RankFailure> cause_;
  std::vector<int> killed_;
  Clock::time_point collecting_since_{};
  Clock::time_point look_at_saves_ = Clock::time_point::max();
  Clock::time_point save_until_{};
  std::optional<int> held_;                     // a signal that ranks get when their checkpoints are written
  std::map<std::string, size_t> shown_errors_;  // and how many ranks have said them
  std::optional<uint64_t> told_at_;             // writes to the console when one line had told why the run ends
  bool said_saving_ = false;
  bool all_done_ = false;
  bool reported_done_ = false;
  bool link_lost_ = false;
  std::array<char, 1 << 16> buffer_;
};

}  // namespace

std::optional<RankFailure> run_ranks(const GroupSpec& spec, Console& console, SignalPipe& signals, NodeLink* link) {
  return RankGroup(spec, console, signals, link).run();
}

}  // namespace levin::detail
