#include "levin/strategies/sharding/call_order.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/core/error.h"
#include "levin/distributed/failure.h"

namespace levin::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kLost = ~size_t{0};
/// Calls that can be asked for later; a rank does not run ahead of the others by as many.
constexpr size_t kRemembered = 1 << 14;
/// A tree that has grown so large is forgotten, on all ranks at once; orders that never repeat must not fill memory.
constexpr size_t kMostPlaces = 1 << 17;
/// Steps that never end (forwards that nobody differentiates) begin again after as many calls.
constexpr size_t kLongestStep = 1 << 14;
constexpr milliseconds kLookEvery{100};
/// How long a rank that departs waits for answers through the store before it waits where all collectives do.
constexpr milliseconds kPatience{2000};
/// ... and, once it knows that there is a difference, for the rest of them.
constexpr milliseconds kPatienceForRest{1000};

constexpr auto kDepartures = "departures";

std::string departure_key(int64_t number) {
  return fmt::format("departure/{}", number);
}

std::string call_key(int64_t position, int rank) {
  return fmt::format("call/{}/{}", position, rank);
}

std::string outcome_key(int64_t position) {
  return fmt::format("outcome/{}", position);
}

/// A group may see several of them, one after the other or at once; every rank makes them in the same order.
c10::intrusive_ptr<c10d::Store> store_of_instance(const Collective& group) {
  const auto number = group.store()->add(fmt::format("order/made_by_{}", group.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("order/{}", number), group.store());
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ull;
}

}  // namespace

struct CallOrder::Watcher {
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;
  std::thread thread;

  ~Watcher() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    stop.notify_all();
    thread.join();
  }
};

CallOrder::CallOrder(std::shared_ptr<Collective> group, std::string strategy)
    : group_(std::move(group)), strategy_(std::move(strategy)), store_(store_of_instance(*group_)), log_(kRemembered) {
  watcher_ = ProcessBound<Watcher>(std::make_unique<Watcher>());
  // By reference: the watcher is not to be found in its place any more when it is being destroyed.
  watcher_->thread = std::thread([this, &watcher = *watcher_] { watch(watcher); });
}

CallOrder::~CallOrder() {
  watcher_.reset();
}

int CallOrder::add(std::string name, int64_t elements) {
  const std::lock_guard lock(mutex_);
  units_.push_back({std::move(name), elements});
  return static_cast<int>(units_.size()) - 1;
}

std::string CallOrder::describe(const Call& call) const {
  const auto& unit = units_[static_cast<size_t>(call.unit)];
  const auto dot = call.operation.find('.');
  return fmt::format("{} of {} ({} elements){}", call.operation.substr(dot == std::string_view::npos ? 0 : dot + 1),
                     unit.name.empty() ? std::string("the root") : fmt::format("\"{}\"", unit.name), unit.elements,
                     call.begins ? " in a new step" : "");
}

/// What other ranks compare: the place in the step and the call, then the words for it.
std::string CallOrder::posted(const Call& call) const {
  return fmt::format("{}/{}\n{}{}", call.place, call.label, describe(call),
                     call.place == kLost ? ", after an exception" : "");
}

void CallOrder::announce(const Call& call) {
  const std::lock_guard lock(mutex_);
  log_[static_cast<size_t>(announced_) % kRemembered] = call;
  ++announced_;
}

void CallOrder::next(std::string_view operation, int unit) {
  LEVIN_CHECK(watcher_.is_here(), "[", strategy_, "] this process is a fork of rank ", group_->rank(),
              ", which alone communicates; start ranks with launch()");
  Call call{.place = lost_ ? kLost : at_, .operation = operation, .unit = unit, .begins = begins_ || lost_};
  uint64_t hash = mixed(1469598103934665603ull, call.begins);
  for (const unsigned char letter : operation) hash = mixed(hash, letter);
  call.label = mixed(hash, static_cast<uint64_t>(unit));
  const auto& known = places_[at_].next;
  const bool is_known = std::any_of(known.begin(), known.end(), [&](auto& edge) { return edge.first == call.label; });
  const bool certain = !lost_ && known.size() == 1 && is_known;
  announce(call);
  if (lost_ || (known.size() == 1 && !is_known)) {
    compare_through_store(call);
  } else if (!certain) {
    ++comparisons_;
    group_->agree(strategy_, describe(call));
  }
  follow(call, at_);
  begins_ = lost_ = false;
}

void CallOrder::follow(const Call& call, size_t from) {
  if (places_.size() > kMostPlaces) {
    places_.assign(1, {});
    from = 0;
  }
  // What begins a step leads to the same place wherever it came from.
  const bool anew = call.begins || ++steps_from_start_ > kLongestStep;
  if (anew) steps_from_start_ = 0;
  const auto child = [&](size_t place) {
    auto& next = places_[place].next;
    const auto at = std::find_if(next.begin(), next.end(), [&](auto& edge) { return edge.first == call.label; });
    return at == next.end() ? kLost : at->second;
  };
  auto to = child(from);
  if (to == kLost && anew && from != 0) to = child(0);
  if (to == kLost) {
    to = places_.size();
    places_.emplace_back();
    if (anew && from != 0) places_[0].next.emplace_back(call.label, to);
  }
  if (child(from) == kLost) places_[from].next.emplace_back(call.label, to);
  at_ = to;
}

/// `calls` by rank; empty: it is not known what that rank calls.
std::string CallOrder::line_of(const std::vector<std::string>& calls) const {
  std::vector<std::pair<std::string, std::vector<int>>> callers;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].empty()) continue;
    const auto what = calls[rank].substr(calls[rank].find('\n') + 1);
    auto at = std::find_if(callers.begin(), callers.end(), [&](auto& entry) { return entry.first == what; });
    if (at == callers.end()) at = callers.insert(at, {what, {}});
    at->second.push_back(static_cast<int>(rank));
  }
  std::string line;
  for (const auto& [what, ranks] : callers)
    line += fmt::format("{}{} {} {}", line.empty() ? "" : ", ", rank_list(ranks), ranks.size() == 1 ? "calls" : "call",
                        what);
  return fmt::format("[{}] ranks disagree: {}", strategy_, line);
}

void CallOrder::end_parts(const std::string& line) {
  for (const auto& part : parts_)
    if (auto* failures = part->failures()) failures->leave({FailureReport::Kind::kShared, line});
}

void CallOrder::fail(std::string_view operation, const std::string& line) {
  try {
    group_->failures()->fail(operation, {FailureReport::Kind::kShared, line});
  } catch (const Error& error) {
    end_parts(error.what());
    throw;
  }
}

void CallOrder::compare_through_store(const Call& call) {
  ++comparisons_;
  const auto& store = store_;
  auto* failures = group_->failures();
  const int64_t position = announced_ - 1;
  const auto mine = posted(call);
  std::vector<std::string> calls(static_cast<size_t>(group_->size()));
  bool complete = false, equal = true, broken = false;
  std::string cause, outcome;
  const auto look = [&] {
    complete = equal = true;
    for (int rank = 0; rank < group_->size(); ++rank) {
      auto& theirs = calls[static_cast<size_t>(rank)];
      const auto key = call_key(position, rank);
      if (theirs.empty() && store->check({key})) theirs = store->get_to_str(key);
      complete = complete && !theirs.empty();
      equal = equal && (theirs.empty() || theirs == mine);
    }
  };
  const auto decide = [&](const char* word) {
    outcome = store->compareSet(outcome_key(position), std::string(), std::string(word));
  };
  try {
    store->set(call_key(position, group_->rank()), mine);
    const auto number = store->add(kDepartures, 1);
    store->set(departure_key(number), fmt::format("{} {}", position, group_->rank()));
    const auto start = Clock::now();
    auto first_difference = Clock::time_point::max();
    while (outcome.empty() && !broken) {
      look();
      if (!equal) {
        first_difference = std::min(first_difference, Clock::now());
        if (complete || Clock::now() > first_difference + kPatienceForRest) break;
      }
      // The first to decide decides for all: nobody may wait where the others are not.
      if (complete && equal)
        decide("equal");
      else if (store->check({outcome_key(position)}))
        outcome = store->get_to_str(outcome_key(position));
      else if (equal && Clock::now() > start + kPatience)
        decide("meet");
      if (!outcome.empty()) look();  // an answer may have come just before
      broken = failures->failed() || failures->others_failed();
      if (outcome.empty()) std::this_thread::sleep_for(milliseconds(2));
    }
  } catch (const std::exception& error) {
    broken = true;
    cause = error.what();
  }
  if (!equal) fail(call.operation, line_of(calls));
  if (broken) failures->fail(call.operation, {FailureReport::Kind::kWaiting, std::string(call.operation)}, cause);
  if (outcome == "meet") group_->agree(strategy_, mine.substr(mine.find('\n') + 1));
}

// ---- the thread that answers for calls that are past

void CallOrder::watch(Watcher& watcher) {
  const auto& store = store_;
  int64_t seen = 0;
  std::vector<std::pair<int64_t, int>> open;
  std::unique_lock lock(watcher.mutex);
  while (!watcher.stop.wait_for(lock, kLookEvery, [&] { return watcher.stopping; })) {
    lock.unlock();
    const auto announced = [this] {
      const std::lock_guard log_lock(mutex_);
      return announced_;
    }();
    try {
      const auto number = store->add(kDepartures, 0);
      for (; seen < number && store->check({departure_key(seen + 1)}); ++seen) {
        const auto text = store->get_to_str(departure_key(seen + 1));
        std::pair<int64_t, int> departure{0, 0};
        const char* end = text.data() + text.size();
        const char* middle = std::from_chars(text.data(), end, departure.first).ptr;
        std::from_chars(std::min(middle + 1, end), end, departure.second);
        if (departure.second != group_->rank()) open.push_back(departure);
      }
      std::erase_if(open, [&](const auto& departure) {
        if (departure.first >= announced) return false;  // this rank has not come so far
        answer(departure.first, departure.second);
        return true;
      });
    } catch (const std::exception&) {
      // The store has gone with the rank that served it; whoever communicates finds out.
    }
    lock.lock();
  }
}

void CallOrder::answer(int64_t position, int departed) {
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    const bool remembered = position + static_cast<int64_t>(kRemembered) > announced_;
    mine = remembered ? posted(log_[static_cast<size_t>(position) % kRemembered]) : "\nsomething else";
  }
  const auto& store = store_;
  store->set(call_key(position, group_->rank()), mine);
  // The rank that departed waits in the store for this answer, unless that came too late.
  const bool late = store->check({outcome_key(position)}) && store->get_to_str(outcome_key(position)) == "meet";
  if (!late || store->get_to_str(call_key(position, departed)) == mine) return;
  std::vector<std::string> calls(static_cast<size_t>(group_->size()));
  for (int rank = 0; rank < group_->size(); ++rank)
    if (store->check({call_key(position, rank)}))
      calls[static_cast<size_t>(rank)] = store->get_to_str(call_key(position, rank));
  const auto line = line_of(calls);
  group_->failures()->leave({FailureReport::Kind::kShared, line});
  end_parts(line);
}

}  // namespace levin::detail
