#include "levin/distributed/watch.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTurn = 250ms;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string beat_key(int rank) {
  return fmt::format("beat/{}", rank);
}

/// Times that go together.
WatchOptions fitted(WatchOptions options) {
  const auto first = std::min(options.warn_after, options.silence);
  if (!options.beat) options.beat = std::clamp<std::chrono::milliseconds>(first / 3, 1ms, 1s);
  LEVIN_CHECK(3 * *options.beat <= std::max<std::chrono::milliseconds>(options.silence, 3ms), "[join] a beat of ",
              seconds(*options.beat), " s does not go with a silence timeout of ", seconds(options.silence),
              " s: give a third of it or less");
  options.stall = std::min(std::max(options.stall, 3 * *options.beat), first);
  return options;
}

/// What a rank was last known to do; empty when nothing is known.
std::string last_words(const std::optional<RankSnapshot>& state) {
  if (!state) return {};
  if (const auto* waits = state->longest_wait()) return fmt::format("last: waited in {}", waits->what);
  if (!state->doing.empty() && !state->place.empty()) return fmt::format("last: {}, {}", state->doing, state->place);
  if (!state->doing.empty() || !state->place.empty()) return fmt::format("last: {}{}", state->doing, state->place);
  return state->last.empty() ? std::string() : fmt::format("last: {} ended", state->last);
}

std::string silent_line(int rank, double silent, const std::optional<RankSnapshot>& state) {
  const auto last = last_words(state);
  return fmt::format("rank {} has not been heard of for {:.0f} s; it may be stopped or its machine gone{}", rank,
                     silent, last.empty() ? "" : fmt::format(" ({})", last));
}

/// What a rank does that is heard of.
std::string present_line(int rank, const std::optional<RankSnapshot>& state) {
  if (!state) return fmt::format("rank {} has begun no operation", rank);
  if (const auto* waits = state->longest_wait(); waits && waits->age > 1)
    return fmt::format("rank {} waits in {} for {:.0f} s", rank, waits->what, waits->age);
  if (!state->doing.empty() || !state->place.empty())
    return fmt::format("rank {} has been in {} for {:.0f} s", rank,
                       state->doing.empty()   ? state->place
                       : state->place.empty() ? state->doing
                                              : fmt::format("{} ({})", state->doing, state->place),
                       state->doing.empty() ? state->place_age : state->doing_age);
  if (!state->last.empty())
    return fmt::format("rank {} is alive; its last operation was {}, {:.0f} s ago", rank, state->last, state->last_age);
  return fmt::format("rank {} is alive and has begun no operation", rank);
}

/// Every rank may have to say it, not rank 0 alone.
void say(const std::string& line) {
  std::fputs(fmt::format("levin: warning: {}\n", line).c_str(), stderr);
}

}  // namespace

/// What the two threads share, and the thread that speaks to the store.
struct RankWatch::Talk {
  Talk(c10::intrusive_ptr<c10d::Store> s, int r, int world, std::chrono::milliseconds every)
      : store(std::move(s)),
        rank(r),
        beat(every),
        // All who wait read all: many ranks would keep the store busy with it.
        between_readings(std::min<std::chrono::milliseconds>(every, 500ms) + world * 10ms),
        states(static_cast<size_t>(world)),
        heard_of(static_cast<size_t>(world)) {}

  struct Group {
    std::weak_ptr<const GroupTrace> trace;
    std::weak_ptr<FailureExchange> failures;
  };

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, finished = false;
  std::vector<Group> groups;
  std::string place, doing;
  Clock::time_point place_since = Clock::now(), doing_since = Clock::now();
  /// The others are to be read; how often that was done, and what they said last.
  bool wanted = false;
  int64_t readings = 0;
  Clock::time_point last_answer = Clock::now();
  bool others_failed = false;

  // The talking thread's own, but for `states`, which is under the mutex.
  c10::intrusive_ptr<c10d::Store> store;
  const int rank;
  const std::chrono::milliseconds beat, between_readings;
  std::vector<std::optional<RankSnapshot>> states;
  std::vector<bool> heard_of;
  std::atomic<int64_t> tick = 0;

  RankSnapshot snapshot() const {
    RankSnapshot own;
    own.tick = tick;
    std::vector<std::shared_ptr<const GroupTrace>> traces;
    {
      std::lock_guard lock(mutex);
      own.place = place;
      own.doing = doing;
      own.place_age = seconds(Clock::now() - place_since);
      own.doing_age = seconds(Clock::now() - doing_since);
      for (const auto& group : groups)
        if (auto trace = group.trace.lock()) traces.push_back(std::move(trace));
    }
    Clock::time_point newest{};
    for (const auto& trace : traces) {
      own.groups.push_back(trace->snapshot());
      if (auto [what, at] = trace->last(); at > newest) {
        newest = at;
        own.last = std::move(what);
        own.last_age = seconds(Clock::now() - at);
      }
    }
    return own;
  }

  void run() noexcept {
    try {
      std::unique_lock lock(mutex);
      Clock::time_point next_reading{};
      while (!stop) {
        const bool read = wanted && Clock::now() >= next_reading;
        lock.unlock();
        talk(read);
        lock.lock();
        last_answer = Clock::now();
        if (read) next_reading = last_answer + between_readings;
        // Whoever waits wants to know soon.
        const auto next_beat = last_answer + beat;
        changed.wait_until(lock, wanted ? std::min(next_beat, next_reading) : next_beat,
                           [&] { return stop || (wanted && Clock::now() >= next_reading); });
      }
    } catch (const std::exception&) {
      // The store is gone with the one who served it; connections to the ranks tell the rest.
    }
    store.reset();
    std::lock_guard lock(mutex);
    finished = true;
    changed.notify_all();
  }

  void talk(bool read) {
    ++tick;
    const auto own = snapshot();
    store->set(beat_key(rank), own.to_text());
    const bool failed = FailureExchange::any_failed(*store);
    std::vector<std::optional<RankSnapshot>> heard(states.size());
    if (read) {
      std::vector<std::string> keys;
      std::vector<size_t> of;
      for (size_t i = 0; i < heard.size(); ++i)
        if (const auto key = beat_key(static_cast<int>(i)); static_cast<int>(i) != rank) {
          if (!heard_of[i]) heard_of[i] = store->check({key});
          if (!heard_of[i]) continue;
          keys.push_back(key);
          of.push_back(i);
        }
      const auto texts = store->multiGet(keys);
      for (size_t i = 0; i < texts.size(); ++i)
        heard[of[i]] = RankSnapshot::from_text(std::string(texts[i].begin(), texts[i].end()));
    }
    std::lock_guard lock(mutex);
    others_failed = failed;
    if (!read) return;
    states = std::move(heard);
    ++readings;
  }
};

RankWatch::RankWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, WatchOptions options)
    : rank_(rank),
      options_(fitted(options)),
      talk_(std::make_shared<Talk>(std::move(store), rank, world_size, *options_.beat)),
      pulses_(static_cast<size_t>(world_size)),
      last_turn_(Clock::now()),
      last_judged_(last_turn_) {
  // Not joined but waited for: a call to a store that is gone may never come back.
  std::thread([talk = talk_] { talk->run(); }).detach();
  thread_ = std::thread([this] { run(); });
}

RankWatch::~RankWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
  std::unique_lock lock(talk_->mutex);
  talk_->stop = true;
  talk_->changed.notify_all();
  talk_->changed.wait_for(lock, 2s, [&] { return talk_->finished; });
}

void RankWatch::add(std::weak_ptr<const GroupTrace> trace, std::weak_ptr<FailureExchange> failures) {
  std::lock_guard lock(talk_->mutex);
  std::erase_if(talk_->groups, [](const auto& group) { return group.trace.expired(); });
  talk_->groups.push_back({std::move(trace), std::move(failures)});
}

void RankWatch::set_place(std::string_view place) {
  std::lock_guard lock(talk_->mutex);
  talk_->place = place;
  talk_->doing.clear();
  talk_->place_since = talk_->doing_since = Clock::now();
}

void RankWatch::set_doing(std::string_view doing) {
  std::lock_guard lock(talk_->mutex);
  talk_->doing = doing;
  talk_->doing_since = Clock::now();
}

std::string RankWatch::place() const {
  std::lock_guard lock(talk_->mutex);
  return talk_->place;
}

void RankWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kTurn, [this] { return stopping_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void RankWatch::look() {
  const auto now = Clock::now();
  const auto turn = std::min<Clock::duration>(now - std::exchange(last_turn_, now), 4 * kTurn);
  auto own = talk_->snapshot();
  const auto* wait = own.longest_wait();
  const double waited = wait ? wait->age : 0;
  bool others_failed = false, store_gone = false;
  int64_t readings = 0;
  std::vector<std::optional<RankSnapshot>> states;
  {
    std::lock_guard lock(talk_->mutex);
    others_failed = talk_->others_failed;
    store_gone = talk_->finished;
    const bool answered = talk_->last_answer != std::exchange(last_answer_, talk_->last_answer);
    unanswered_ = store_gone || answered ? 0 : unanswered_ + seconds(turn);
    const bool wanted = waited >= seconds(options_.stall);
    readings = talk_->readings;
    if (wanted && !talk_->wanted) {
      read_before_ = readings;
      talk_->changed.notify_all();
    }
    talk_->wanted = wanted;
    if (wanted) states = talk_->states;
  }
  if (waited < seconds(options_.stall)) {
    suspected_.clear();
    next_warning_ = seconds(options_.warn_after);
    for (auto& pulse : pulses_) pulse = {};
    last_judged_ = now;
    return;
  }
  // The group has ended, and the operation that waits here has not noticed.
  if (others_failed) {
    std::vector<std::shared_ptr<FailureExchange>> all;
    {
      std::lock_guard lock(talk_->mutex);
      for (const auto& group : talk_->groups)
        if (auto failures = group.failures.lock()) all.push_back(std::move(failures));
    }
    for (const auto& failures : all) failures->interrupt();
    return;
  }
  if (unanswered_ > seconds(options_.silence)) {
    const auto who =
        options_.serves_store < 0 ? std::string("the launcher") : fmt::format("rank {}", options_.serves_store);
    return end_groups(fmt::format("[{}] the store has not answered for {:.0f} s; {}, which serves it, may be stopped "
                                  "or its machine gone",
                                  wait->what.substr(0, wait->what.find_first_of(": ")), unanswered_, who),
                      false);
  }
  states.resize(pulses_.size());
  states[static_cast<size_t>(rank_)] = own;
  if (readings != judged_) {
    judged_ = readings;
    const auto gap =
        std::min<Clock::duration>(now - std::exchange(last_judged_, now), 2 * talk_->between_readings + 4 * kTurn);
    for (size_t i = 0; i < states.size(); ++i) {
      const auto tick = states[i] ? states[i]->tick : 0;
      pulses_[i] = tick != pulses_[i].tick ? Pulse{tick} : Pulse{tick, pulses_[i].silent + seconds(gap)};
    }
    // Twice the same: the first may have been read while a rank was on its way.
    auto line = find_deadlock(states, seconds(options_.stall));
    if (!line.empty() && line == suspected_) return end_groups(line, true);
    suspected_ = std::move(line);
    for (const int other : missing_in_longest_wait(states, rank_)) {
      const auto silent = pulses_[static_cast<size_t>(other)].silent;
      if (silent > seconds(options_.silence))
        return end_groups(fmt::format("[{}] {}", wait->what.substr(0, wait->what.find_first_of(": ")),
                                      silent_line(other, silent, states[static_cast<size_t>(other)])),
                          true);
    }
  }
  if (waited < next_warning_) return;
  const bool unheard = unanswered_ > 5 * seconds(*options_.beat) + 5;
  if (!unheard && !store_gone && readings == read_before_) return;  // what the others do will be known in a moment
  next_warning_ = 2 * waited;
  if (unheard || store_gone)
    say(fmt::format("[{}] rank {} has waited for {:.0f} s, and the store {}", wait->what, rank_, waited,
                    store_gone ? "is gone" : fmt::format("has not answered for {:.0f} s", unanswered_)));
  else
    warn(own, *wait);
}

std::string RankWatch::describe(int rank) const {
  std::lock_guard lock(talk_->mutex);
  if (talk_->readings == 0) return {};
  return present_line(rank, talk_->states[static_cast<size_t>(rank)]);
}

void RankWatch::warn(const RankSnapshot& own, const GroupSnapshot::Operation& wait) {
  std::vector<std::optional<RankSnapshot>> states;
  {
    std::lock_guard lock(talk_->mutex);
    states = talk_->states;
  }
  states.resize(pulses_.size());
  states[static_cast<size_t>(rank_)] = own;
  const auto missing = missing_in_longest_wait(states, rank_);
  // One of those who wait says it.
  for (int i = 0; i < rank_; ++i)
    if (const auto& other = states[static_cast<size_t>(i)]) {
      const auto* theirs = other->longest_wait();
      if (theirs && GroupTrace::unlabelled(theirs->what) == GroupTrace::unlabelled(wait.what) &&
          std::find(missing.begin(), missing.end(), i) == missing.end())
        return;
    }
  std::string list;
  for (const int other : missing) {
    const auto& state = states[static_cast<size_t>(other)];
    const auto silent = pulses_[static_cast<size_t>(other)].silent;
    const auto text =
        silent > 5 * seconds(*options_.beat) + 2 ? silent_line(other, silent, state) : present_line(other, state);
    list += (list.empty() ? "" : "; ") + text;
  }
  say(fmt::format("[{}] rank {} has waited for {:.0f} s: {}", wait.what, rank_, wait.age,
                  list.empty() ? "every rank has begun it" : list));
}

void RankWatch::end_groups(const std::string& line, bool store_answers) {
  std::vector<std::shared_ptr<FailureExchange>> all;
  {
    std::lock_guard lock(talk_->mutex);
    for (const auto& group : talk_->groups)
      if (auto failures = group.failures.lock()) all.push_back(std::move(failures));
  }
  for (const auto& failures : all) failures->conclude(line, store_answers);
}

}  // namespace levin::detail
