#include "levin/distributed/failure.h"

#include <condition_variable>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/core/error.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = FailureReport::Kind;
using std::chrono::milliseconds;

constexpr auto kVerdict = "failure/verdict";
constexpr auto kAny = "failure/any";
/// How long to wait for the report of a rank whose connection is gone: it may have been sent just before.
constexpr milliseconds kPatienceForClosed{400};

std::string report_key(int rank) {
  return fmt::format("failure/report/{}", rank);
}

std::string done_key(int rank) {
  return fmt::format("failure/done/{}", rank);
}

bool contains(std::span<const int> ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

std::string rank_list(std::span<const int> ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - i == 2) end = i + 1;  // "0, 1"
    runs.push_back(end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
  }
  if (runs.empty()) return {};
  const auto last = runs.back();
  runs.pop_back();
  return fmt::format("rank{} {}{}{}", ranks.size() > 1 ? "s" : "", fmt::join(runs, ", "), runs.empty() ? "" : " and ",
                     last);
}

std::string explain_failure(std::string_view operation, std::span<const std::optional<FailureReport>> reports,
                            std::span<const int> closed, std::span<const int> names, std::string_view cause) {
  const auto ranks_where = [&](auto&& predicate) {
    std::vector<int> ranks;
    for (size_t i = 0; i < reports.size(); ++i)
      if (predicate(static_cast<int>(i), reports[i])) ranks.push_back(names[i]);
    return ranks;
  };
  const auto first_of = [&](Kind kind) -> const FailureReport* {
    for (const auto& report : reports)
      if (report && report->kind == kind) return &*report;
    return nullptr;
  };

  if (const auto* shared = first_of(Kind::kShared)) {
    const auto ranks = ranks_where([&](int, const auto& report) {
      return report && report->kind == Kind::kShared && report->text == shared->text;
    });
    std::string line = shared->text;
    if (const auto at = line.find("{ranks}"); at != std::string::npos)
      line.replace(at, 7, ranks.size() == reports.size() ? "every rank" : rank_list(ranks));
    return line;
  }
  if (const auto* failed = first_of(Kind::kFailed)) {
    const auto ranks = ranks_where([&](int, const auto& report) { return report && report->kind == Kind::kFailed; });
    return fmt::format("[{}] {} failed: {}", operation, rank_list(ranks), failed->text);
  }
  if (const auto* timed_out = first_of(Kind::kTimedOut)) {
    const auto missing = ranks_where([](int, const auto& report) { return !report || report->kind == Kind::kLeft; });
    const auto within = timed_out->text.rfind(" within ");
    if (!missing.empty())
      return fmt::format("[{}] {} did not arrive{}", timed_out->text.substr(0, within), rank_list(missing),
                         within == std::string::npos ? "" : timed_out->text.substr(within));
    // Everybody waits, and not for a rank: they are in different places.
    std::string places;
    for (size_t i = 0; i < reports.size(); ++i)
      places += fmt::format("{}rank {} in {}", i ? ", " : "", names[i],
                            reports[i]->text.substr(0, reports[i]->text.rfind(" within ")));
    return fmt::format("[{}] the ranks wait for each other: {}", operation, places);
  }
  const auto died = ranks_where([&](int i, const auto& report) { return !report && contains(closed, i); });
  if (!died.empty()) return fmt::format("[{}] {} died: the connection was lost", operation, rank_list(died));
  const auto left = ranks_where([](int, const auto& report) { return report && report->kind == Kind::kLeft; });
  if (!left.empty()) {
    const auto* first = first_of(Kind::kLeft);
    return fmt::format("[{}] {} {} left the group already{}", operation, rank_list(left),
                       left.size() == 1 ? "has" : "have", first->text.empty() ? "" : fmt::format(" ({})", first->text));
  }
  return fmt::format("[{}] communication failed: {}", operation, cause.empty() ? "no reason is known" : cause);
}

FailureExchange::FailureExchange(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> names, Hooks hooks,
                                 milliseconds patience, std::shared_ptr<FailureExchange> parent)
    : store_(std::move(store)),
      rank_(rank),
      names_(std::move(names)),
      hooks_(std::move(hooks)),
      patience_(patience),
      parent_(std::move(parent)) {}

void FailureExchange::check_process(std::string_view operation) const {
  LEVIN_CHECK(home_.is_here(), "[", operation, "] this process is a fork of rank ", names_[static_cast<size_t>(rank_)],
              ", which alone communicates; start ranks with launch()");
}

void FailureExchange::check(std::string_view operation) const {
  check_process(operation);
  std::lock_guard lock(mutex_);
  LEVIN_CHECK(ended_.text.empty(), "[", operation, "] the group of ranks has ended: ", ended_.text);
}

bool FailureExchange::failed() const {
  std::lock_guard lock(mutex_);
  return !ended_.text.empty();
}

std::string FailureExchange::reason() const {
  std::lock_guard lock(mutex_);
  return ended_.text;
}

void FailureExchange::conclude(const std::string& line, bool store_answers) noexcept {
  if (!home_.is_here() || failed()) return;
  auto agreed = line;
  if (store_answers) try {
      // Ranks may come to different lines at the same time: the first one counts.
      agreed = store_->compareSet(kVerdict, std::string(), line);
      post({Kind::kShared, agreed});
      say_done();
    } catch (const std::exception&) {
      // The others will see the connections close.
    }
  end_with({Kind::kShared, agreed});  // before the next line: who waits must find the reason
  hooks_.abort();
}

void FailureExchange::post(const FailureReport& report) {
  store_->set(report_key(rank_), fmt::format("{}{}", static_cast<char>(report.kind), report.text));
  if (report.kind != Kind::kLeft) store_->set(kAny, std::string("1"));
}

void FailureExchange::fail(std::string_view operation, const FailureReport& report, std::string_view cause) {
  check(operation);
  // A peer's closing is seen by a thread of the backend, and may be seen a moment after what it caused.
  if (report.kind == Kind::kWaiting) std::this_thread::sleep_for(milliseconds(50));
  const auto closed = hooks_.closed_peers();
  std::string line;
  try {
    post(report);
    hooks_.abort();
    line = agree(operation, closed, cause);
    say_done();
  } catch (const std::exception&) {
    // The store is gone with the rank that served it: what is known here must do.
    hooks_.abort();
    std::vector<std::optional<FailureReport>> known(names_.size());
    known[static_cast<size_t>(rank_)] = report;
    line = explain_failure(operation, known, closed, names_, cause);
  }
  end_with({Kind::kShared, line});
  if (parent_) parent_->leave({Kind::kShared, line});
  throw Error(line);
}

// What those are doing for whom others have waited too long.
std::string FailureExchange::late_ranks(std::span<const std::optional<FailureReport>> reports) const {
  const auto timed_out = [](const auto& report) { return report && report->kind == Kind::kTimedOut; };
  if (!hooks_.doing || std::none_of(reports.begin(), reports.end(), timed_out)) return {};
  constexpr int kShown = 3;
  std::string text;
  for (size_t i = 0, shown = 0; i < reports.size() && shown < kShown; ++i) {
    if (reports[i]) continue;
    const auto doing = hooks_.doing(names_[i]);
    if (doing.empty()) continue;
    text += "; " + doing;
    ++shown;
  }
  return text;
}

std::string FailureExchange::agree(std::string_view operation, std::span<const int> closed, std::string_view cause) {
  std::vector<std::optional<FailureReport>> reports(names_.size());
  const auto start = Clock::now();
  while (true) {
    if (store_->check({kVerdict})) return store_->get_to_str(kVerdict);
    bool complete = true, only_closed_missing = true;
    for (size_t i = 0; i < reports.size(); ++i) {
      const auto key = report_key(static_cast<int>(i));
      // A rank that has left may say more later, so it is read again.
      if ((!reports[i] || reports[i]->kind == Kind::kLeft) && store_->check({key})) {
        const auto text = store_->get_to_str(key);
        reports[i] = FailureReport{static_cast<Kind>(text.at(0)), text.substr(1)};
      }
      if (!reports[i]) {
        complete = false;
        only_closed_missing = only_closed_missing && contains(closed, static_cast<int>(i));
      }
    }
    if (complete || Clock::now() - start > (only_closed_missing ? std::min(kPatienceForClosed, patience_) : patience_))
      break;
    std::this_thread::sleep_for(milliseconds(10));
  }
  const auto line = explain_failure(operation, reports, closed, names_, cause) + late_ranks(reports);
  return store_->compareSet(kVerdict, std::string(), line);
}

void FailureExchange::leave(const FailureReport& report) noexcept {
  if (!home_.is_here() || failed()) return;
  try {
    post(report);
    say_done();
  } catch (const std::exception&) {
    // The others will see the connection close.
  }
  if (report.kind == Kind::kLeft) return;
  hooks_.abort();
  end_with(report);
  if (parent_) parent_->leave(report);
}

void FailureExchange::leave_by_exception() noexcept {
  if (!home_.is_here()) return;
  FailureReport report{Kind::kFailed, "it left because of an exception"};
  if (parent_) {
    std::lock_guard lock(parent_->mutex_);
    if (!parent_->ended_.text.empty()) report = parent_->ended_;
  }
  leave(report);
}

void FailureExchange::wait_for_others(milliseconds timeout) noexcept {
  try {
    std::vector<std::string> keys;
    for (size_t i = 0; i < names_.size(); ++i) keys.push_back(done_key(static_cast<int>(i)));
    const auto deadline = Clock::now() + timeout;
    while (!store_->check(keys) && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
  } catch (const std::exception&) {
    // Nobody needs the store any more.
  }
}

void FailureExchange::say_done() noexcept {
  try {
    store_->set(done_key(rank_), std::string("1"));
  } catch (const std::exception&) {
    // Who served the store is gone, and waits no more.
  }
}

bool FailureExchange::others_failed() noexcept {
  try {
    return any_failed(*store_);
  } catch (const std::exception&) {
    return false;
  }
}

bool FailureExchange::any_failed(c10d::Store& store) {
  return store.check({kAny});
}

void FailureExchange::end_with(const FailureReport& report) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_.text.empty()) ended_ = report;
}

struct FailureWatcher::State {
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;
  std::thread thread;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    stop.notify_all();
    thread.join();
  }
};

FailureWatcher::FailureWatcher(std::shared_ptr<FailureExchange> failures, std::function<void()> react,
                               milliseconds every, std::function<void()> each_turn)
    : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = &*state_, failures = std::move(failures), react = std::move(react), every,
                                each_turn = std::move(each_turn)] {
    std::unique_lock lock(state->mutex);
    while (!state->stop.wait_for(lock, every, [&] { return state->stopping; })) {
      if (each_turn) each_turn();
      if (!failures->others_failed()) continue;
      react();
      return;
    }
  });
}

FailureWatcher::~FailureWatcher() = default;

}  // namespace levin
