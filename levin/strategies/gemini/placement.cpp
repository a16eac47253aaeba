#include "levin/strategies/gemini/placement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace {

using Where = ChunkResidence::Where;

bool among_chunks(int chunk, std::span<const int> chunks) {
  return std::ranges::find(chunks, chunk) != chunks.end();
}

int64_t fraction_of(double ratio, int64_t bytes) {
  return static_cast<int64_t>(ratio * static_cast<double>(bytes));
}

// Two numbers that are each other's negative: their greatest values over the ranks agree when all ranks have the same.
void agree_on_order(const UseTrace& trace, const PlacementOptions& options) {
  int64_t hash = trace.size();
  for (int64_t use = 0; use < trace.size(); ++use)
    for (const auto chunk : trace.at(use)) hash = (hash * 1000003 + use * 31 + chunk) & 0xffffffffffff;
  std::vector<int64_t> values{trace.size(), -trace.size(), hash, -hash};
  options.max_over_ranks(values);
  LEVIN_CHECK(values[0] == -values[1] && values[2] == -values[3],
              "[colossalai] ranks use the parameters in different orders; every rank must run the same modules");
}

}  // namespace

PlacementPolicy placement_policy(const std::string& word) {
  static const std::array<std::string, 4> known{"auto", "cuda", "cpu", "static"};
  const auto found = std::ranges::find(known, word);
  if (found == known.end()) fail_unknown("colossalai", "placement_policy", word, known);
  return static_cast<PlacementPolicy>(found - known.begin());
}

Placement::Placement(PlacementOptions options, std::vector<ChunkResidence> chunks, std::unique_ptr<MemorySource> source)
    : options_(std::move(options)), chunks_(std::move(chunks)) {
  if (options_.policy != PlacementPolicy::kAuto) return;
  LEVIN_CHECK(options_.capacity > 0,
              "[colossalai] placement_policy \"auto\" needs to know the bytes of the device: "
              "set memory_budget");
  monitor_ = std::make_unique<MemoryMonitor>(std::move(source));
}

int64_t Placement::model_bytes() const {
  int64_t sum = 0;
  for (const auto& chunk : chunks_) sum += chunk.bytes_now();
  return sum;
}

void Placement::begin_pass(Pass pass, bool training) {
  const auto kind = training || pass == Pass::kBackward ? kTraining : kEvaluation;
  auto& other = records_[kind == kTraining ? kEvaluation : kTraining];
  if (other.recording)
    other.recording = false;  // a measurement with another pass within tells nothing; the next step is recorded
  record_ = &records_[kind];
  if (!record_->open) begin_step(*record_);
}

void Placement::end_pass(Pass pass) {
  for (auto& chunk : chunks_) chunk.computing = false;
  if (record_ && record_->open && (pass == Pass::kBackward || record_ == &records_[kEvaluation])) finish_step(*record_);
}

void Placement::begin_step(Record& record) {
  record.open = true;
  record.clock = 0;
  if (record.complete) agree(record);
  if (record.ready) {
    ++record.steps;
    agree_on_excess(record);
    return;
  }
  record.recording = true;
  record.trace.clear();
  if (monitor_) monitor_->begin();
}

void Placement::finish_step(Record& record) {
  record.open = false;
  if (record.ready && record.clock != record.trace.size()) drop(record);
  if (!record.recording) return;
  record.recording = false;
  record.complete = record.trace.size() > 0;
  if (!monitor_) return;
  monitor_->finish();
  record.periods = monitor_->periods();
  overall_peak_ = monitor_->overall_peak();
}

// Not at the end of the step: that may be in a destructor, which must not wait for others or throw.
void Placement::agree(Record& record) {
  record.complete = false;
  if (options_.max_over_ranks) {
    agree_on_order(record.trace, options_);
    if (monitor_) {
      std::vector<int64_t> values{overall_peak_};
      for (const auto& period : record.periods) values.insert(values.end(), {period.before, period.work});
      options_.max_over_ranks(values);
      overall_peak_ = values[0];
      for (size_t i = 0; i < record.periods.size(); ++i) record.periods[i] = {values[1 + 2 * i], values[2 + 2 * i]};
    }
  }
  record.ready = true;
  record.steps = 0;
  record.excess = 0;
  record.seen_excess = 0;
  ++counts_.recorded;
  if (&record == &records_[kTraining] && std::exchange(first_, false) && options_.after_record)
    options_.after_record(overall_peak_);
}

// What is in memory besides the parameters may grow after the recorded step: states of the optimizer, larger batches.
// Ranks have to agree on how much, which they do seldom, so that it costs nothing.
void Placement::agree_on_excess(Record& record) {
  if (!monitor_ || !std::has_single_bit(static_cast<uint64_t>(record.steps))) return;
  record.seen_excess =
      std::max(record.seen_excess, monitor_->non_model_now(model_bytes()) - record.periods.front().before);
  std::vector<int64_t> values{record.seen_excess};
  if (options_.max_over_ranks) options_.max_over_ranks(values);
  record.excess = std::max(record.excess, values[0]);
}

void Placement::drop(Record& record) {
  record.ready = false;
  record.recording = false;
  record.trace.clear();
  ++counts_.mismatches;
  warn_once(
      "[colossalai] parameters are used in another order than in the recorded step; they are not prefetched "
      "until a step was recorded again");
}

void Placement::follow(Record& record, std::span<const int> needed) {
  if (record.ready && !record.trace.matches(record.clock, needed)) drop(record);
  if (record.recording) {
    record.trace.add(needed);
    if (monitor_) monitor_->begin_period(model_bytes());
  } else if (record.ready && monitor_) {
    const auto& period = record.periods[static_cast<size_t>(record.clock)];
    record.seen_excess = std::max(record.seen_excess, monitor_->non_model_now(model_bytes()) - period.before);
  }
  ++record.clock;
  ++counts_.uses;
  ++now_;
}

std::vector<int> Placement::make_room(std::span<const int> needed) {
  if (!record_ || !record_->open) begin_pass(Pass::kForward, false);
  auto& record = *record_;
  follow(record, needed);
  for (const auto chunk : needed) {
    chunks_[static_cast<size_t>(chunk)].computing = true;
    chunks_[static_cast<size_t>(chunk)].last_use = now_;
  }
  if (options_.policy != PlacementPolicy::kAuto) return {};

  // Chunks need most while they come; then they are here, and the work begins.
  int64_t coming = model_bytes();
  int64_t here = coming;
  for (const auto index : needed) {
    const auto& chunk = chunks_[static_cast<size_t>(index)];
    if (chunk.where == Where::kHere) continue;
    coming += chunk.bytes + chunk.arriving_bytes - chunk.bytes_now();
    here += chunk.bytes - chunk.bytes_now();
  }
  const auto limit = fraction_of(options_.steady_ratio, options_.capacity);
  int64_t others = 0;
  int64_t over = coming - fraction_of(options_.warmup_model_ratio, options_.capacity);
  int64_t over_limit = coming - limit;
  if (record.ready) {
    const auto& period = record.periods[static_cast<size_t>(record.clock - 1)];
    others = period.work + record.excess;
    over = over_limit = std::max(coming + period.before, here + period.work) + record.excess - limit;
  }
  std::vector<int> leave;
  for (const auto index : over > 0 ? by_eviction(needed) : std::vector<int>{}) {
    if (over <= 0) break;
    const auto bytes = chunks_[static_cast<size_t>(index)].bytes_now();
    over -= bytes;
    over_limit -= bytes;
    leave.push_back(index);
  }
  if (over_limit > 0) {
    int64_t wanted = 0;
    for (const auto index : needed) wanted += chunks_[static_cast<size_t>(index)].bytes;
    detail::fail(fmt::format(
        "[colossalai] what is needed together does not fit on the device: {} of parameters (chunk \"{}\"{}) and {} of "
        "everything else are {} more than {:.0f} % of {}; take smaller units or a smaller chunk_size, a smaller batch, "
        "activation_checkpointing_policy, or raise memory_budget",
        format_bytes(static_cast<double>(wanted)), chunks_[static_cast<size_t>(needed[0])].name,
        needed.size() > 1 ? fmt::format(" and {} more", needed.size() - 1) : std::string(),
        format_bytes(static_cast<double>(others)), format_bytes(static_cast<double>(over_limit)),
        100 * options_.steady_ratio, format_bytes(static_cast<double>(options_.capacity))));
  }
  counts_.evicted += static_cast<int64_t>(leave.size());
  return leave;
}

int64_t Placement::next_use(int chunk) const {
  const auto& trace = record_->trace;
  const auto next = trace.next_use(chunk, record_->clock - 1);
  if (next != UseTrace::kNever || record_ == &records_[kTraining]) return next;
  // Parameters do not change between evaluations: the next one begins where this one began.
  const auto first = trace.next_use(chunk, -1);
  return first == UseTrace::kNever ? first : trace.size() + first;
}

// Whether it is used again before any other chunk has to be brought.
bool Placement::needed_next(int chunk) const {
  if (!recorded()) return false;
  const auto& trace = record_->trace;
  for (auto use = record_->clock; use < trace.size(); ++use) {
    if (among_chunks(chunk, trace.at(use))) return true;
    for (const auto other : trace.at(use))
      if (chunks_[static_cast<size_t>(other)].where != Where::kHere) return false;
  }
  return false;
}

// Who leaves first: who is needed last. Without a record who was used longest ago, which in forward is the same.
std::vector<int> Placement::by_eviction(std::span<const int> needed) const {
  std::vector<int> order;
  std::vector<int64_t> distance(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto& chunk = chunks_[i];
    const auto index = static_cast<int>(i);
    if (chunk.where == Where::kAway || chunk.computing || chunk.keep || among_chunks(index, needed)) continue;
    distance[i] = record_->ready ? next_use(index) : -chunk.last_use;
    order.push_back(index);
  }
  std::ranges::stable_sort(
      order, [&](int a, int b) { return distance[static_cast<size_t>(a)] > distance[static_cast<size_t>(b)]; });
  return order;
}

void Placement::layout_changing() {
  if (monitor_ && record_ && record_->recording) monitor_->layout_changing();
}

void Placement::layout_changed() {
  if (monitor_ && record_ && record_->recording) monitor_->layout_changed(model_bytes());
}

Placement::Ahead Placement::ahead(std::span<const int> needed) {
  Ahead plan;
  if (!recorded() || options_.max_prefetch <= 0) return plan;
  const auto& record = *record_;
  int64_t model = model_bytes();
  int coming = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto& chunk = chunks_[i];
    if (among_chunks(static_cast<int>(i), needed))
      model += chunk.where == Where::kHere ? 0 : chunk.bytes + chunk.arriving_bytes - chunk.bytes_now();
    else
      coming += chunk.where == Where::kComing;
  }
  const auto limit = fraction_of(options_.steady_ratio, options_.capacity) - record.excess;
  auto leaving = monitor_ ? by_eviction(needed) : std::vector<int>{};
  size_t first_leaving = 0;
  int64_t work = 0;
  for (auto use = record.clock; use < record.trace.size(); ++use) {
    if (monitor_) work = std::max(work, record.periods[static_cast<size_t>(use - 1)].work);
    for (const auto index : record.trace.at(use)) {
      if (coming >= options_.max_prefetch) return plan;
      const auto& chunk = chunks_[static_cast<size_t>(index)];
      if (chunk.where != Where::kAway || among_chunks(index, needed) || among_chunks(index, plan.bring)) continue;
      const auto arriving = std::max(chunk.bytes, chunk.arriving_bytes);
      auto over = model + arriving + work - limit;
      auto last = first_leaving;
      for (; monitor_ && over > 0 && last < leaving.size() && next_use(leaving[last]) > use; ++last)
        over -= chunks_[static_cast<size_t>(leaving[last])].bytes_now();
      if (monitor_ && over > 0) return plan;
      for (; first_leaving < last; ++first_leaving) {
        plan.leave.push_back(leaving[first_leaving]);
        ++counts_.evicted;
        model -= chunks_[static_cast<size_t>(leaving[first_leaving])].bytes_now();
      }
      model += arriving;
      plan.bring.push_back(index);
      ++coming;
      ++counts_.prefetched;
    }
  }
  return plan;
}

bool Placement::keeps(int index, Pass pass) {
  auto& chunk = chunks_[static_cast<size_t>(index)];
  chunk.computing = false;
  if (chunk.keep || (pass == Pass::kForward && needed_next(index))) return true;
  switch (options_.policy) {
    case PlacementPolicy::kCpu:
    case PlacementPolicy::kStatic:
      return false;
    case PlacementPolicy::kCuda:
      return pass == Pass::kForward;
    case PlacementPolicy::kAuto:
      break;
  }
  // After backward comes the optimizer, which makes it out of date.
  if (pass == Pass::kBackward) return recorded() && next_use(index) != UseTrace::kNever;
  return !recorded() || next_use(index) != UseTrace::kNever;
}

void Placement::reduced(int index) {
  chunks_[static_cast<size_t>(index)].computing = false;
}

void Placement::abandon() {
  for (auto& chunk : chunks_) chunk.computing = false;
  for (auto& record : records_) {
    record.open = false;
    record.recording = false;
  }
}

}  // namespace levin::detail
