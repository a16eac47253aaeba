// Loaders that resume in the middle of an epoch on any other number of ranks: what is left of the epoch comes once, in
// the order of the pass that was not disturbed.
#include <map>

#include <gtest/gtest.h>

#include "levin/data/combined.h"
#include "levin/data/stages.h"
#include "levin/data/stream.h"

namespace levin {
namespace {

using Ids = std::vector<int64_t>;
constexpr int kMost = 8;

Ids ids_in(const Batch& batch) {
  const auto ids = batch["id"];
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel()};
}

/// Items of a step in the order in which the ranks take turns.
void append_step(Ids& all, const std::vector<Ids>& of_ranks) {
  for (size_t i = 0; i < of_ranks[0].size(); ++i)
    for (const auto& rank : of_ranks)
      if (i < rank.size()) all.push_back(rank[i]);
}

template <class L>
struct Pass {
  Ids seen;
  StateDict state;
  int64_t steps = 0;
};

/// A pass over `world` ranks from a state on, at most that many steps of it. All ranks have as many batches, and those
/// that their size says.
template <class L>
Pass<L> pass(const L& loader, int world, const StateDict* from, int64_t at_most = 1000) {
  std::vector<std::vector<Ids>> of_ranks;
  Pass<L> result;
  for (int rank = 0; rank < world; ++rank) {
    const auto mine = loader.distributed(rank, world);
    if (from) mine.load_state_dict(*from);
    const int64_t before = mine.batch();
    auto& batches = of_ranks.emplace_back();
    for (auto& batch : mine) {
      batches.push_back(ids_in(batch));
      if (static_cast<int64_t>(batches.size()) == at_most) break;
    }
    if (rank == 0) result.state = mine.state_dict();
    const auto steps = static_cast<int64_t>(batches.size());
    if (rank == 0) result.steps = steps;
    EXPECT_EQ(steps, result.steps) << "rank " << rank << " of " << world;
    if constexpr (requires { loader.size(); }) {
      if (steps < at_most) {
        const auto again = loader.distributed(rank, world);
        if (from) again.load_state_dict(*from);
        EXPECT_EQ(before + steps, again.size()) << "rank " << rank << " of " << world;
      }
    }
  }
  for (int64_t step = 0; step < result.steps; ++step) {
    std::vector<Ids> one;
    for (const auto& batches : of_ranks)
      if (step < static_cast<int64_t>(batches.size())) one.push_back(batches[static_cast<size_t>(step)]);
    append_step(result.seen, one);
  }
  return result;
}

/// The order begins with what was seen; padding of the last step follows, or its rest was left out.
void expect_continues(const Ids& order, const Ids& seen, int world, int64_t batch, bool drop_last,
                      const std::string& what) {
  const auto both = std::min(order.size(), seen.size());
  EXPECT_EQ(Ids(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(both)),
            Ids(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(both)))
      << what;
  const auto step = static_cast<size_t>(world * batch);
  if (drop_last)
    EXPECT_TRUE(seen.size() <= order.size() && order.size() - seen.size() < step) << what;
  else
    EXPECT_TRUE(seen.size() >= order.size() && seen.size() - order.size() < static_cast<size_t>(world)) << what;
}

/// All pairs, a stop after three steps, and where it is short after one.
template <class L>
void expect_any_ranks_resume(const L& loader, int64_t batch, bool drop_last, const std::string& kind) {
  const auto order = pass(loader, 1, nullptr).seen;
  for (int first = 1; first <= kMost; ++first) {
    const int64_t stop = first < 4 ? 3 : 2;
    const auto begun = pass(loader, first, nullptr, stop);
    const auto given = static_cast<size_t>(stop * batch * first);
    ASSERT_EQ(begun.seen, Ids(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(given))) << kind << first;
    const Ids rest(order.begin() + static_cast<std::ptrdiff_t>(given), order.end());
    for (int then = 1; then <= kMost; ++then) {
      const auto what = kind + " " + std::to_string(first) + " then " + std::to_string(then);
      expect_continues(rest, pass(loader, then, &begun.state).seen, then, batch, drop_last, what);
      // Stopped again, on a third number of ranks.
      const auto more = pass(loader, then, &begun.state, 1);
      const int third = then % kMost + 1;
      Ids seen = more.seen;
      const auto last = pass(loader, third, &more.state).seen;
      seen.insert(seen.end(), last.begin(), last.end());
      expect_continues(rest, seen, third, batch, drop_last, what + " then " + std::to_string(third));
    }
  }
}

auto numbered(int64_t samples, LoaderOptions options) {
  return make_loader(TensorDataset({{"id", torch::arange(samples)}}), std::move(options));
}

TEST(ResumeOnAnyRanks, OfADataset) {
  for (const int64_t samples : {96, 101}) {
    const std::map<std::string, LoaderOptions> kinds{
        {"in order", {.batch_size = 3}},
        {"shuffled", {.batch_size = 4, .shuffle = true, .seed = 5}},
        {"drop_last", {.batch_size = 4, .shuffle = true, .drop_last = true}},
        {"buffered", {.batch_size = 4, .sampler = Sampler::buffered(16)}},
    };
    for (const auto& [kind, options] : kinds)
      // One process has no tail of its own to drop: the order of all is that without drop_last.
      if (options.drop_last) {
        auto all = options;
        all.drop_last = false;
        const auto order = pass(numbered(samples, all), 1, nullptr).seen;
        const auto loader = numbered(samples, options);
        for (int first = 1; first <= kMost; ++first) {
          const auto begun = pass(loader, first, nullptr, 2);
          const Ids rest(order.begin() + 8 * first, order.end());
          for (int then = 1; then <= kMost; ++then)
            expect_continues(rest, pass(loader, then, &begun.state).seen, then, 4, true, kind);
        }
      } else {
        expect_any_ranks_resume(numbered(samples, options), options.batch_size, false, kind);
      }
  }
}

TEST(ResumeOnAnyRanks, InTheNextEpochAllOfIt) {
  const auto loader = numbered(40, {.batch_size = 2, .shuffle = true});
  const auto begun = pass(loader, 3, nullptr, 2);
  const auto mine = loader.distributed(0, 2);
  mine.load_state_dict(begun.state);
  EXPECT_EQ(mine.state_dict().at("samples").to_int(), 12);
  Ids rest, all, same;
  for (auto& batch : mine)
    for (const auto id : ids_in(batch)) rest.push_back(id);
  EXPECT_EQ(rest.size(), 14U);
  for (auto& batch : mine)
    for (const auto id : ids_in(batch)) all.push_back(id);
  EXPECT_EQ(all.size(), 20U);
  // The epoch that was resumed, as a whole.
  mine.set_epoch(0);
  for (auto& batch : mine)
    for (const auto id : ids_in(batch)) same.push_back(id);
  EXPECT_EQ(same.size(), 20U);
}

struct Counting {
  int64_t count, at = 0;
  void start(int64_t) { at = 0; }
  std::optional<Batch> next() {
    if (at == count) return {};
    return Batch{{"id", torch::tensor(at++)}};
  }
};

TEST(ResumeOnAnyRanks, OfAStream) {
  for (const int64_t count : {96, 101})
    expect_any_ranks_resume(make_loader(Counting{count}, {.batch_size = 3, .num_workers = 0}), 3, false, "stream");
}

TEST(ResumeOnAnyRanks, OfAStreamThatIsShuffled) {
  expect_any_ranks_resume(make_loader(stages::shuffle(Counting{101}, 16, 3), {.batch_size = 2, .num_workers = 0}), 2,
                          false, "shuffled stream");
}

// A program that asks for the end of the stream before it is through with the last batch, and then takes that one
// again.
TEST(ResumeOnAnyRanks, OfAStreamThatWasAtItsEnd) {
  const auto loader = make_loader(Counting{16}, {.batch_size = 2, .num_workers = 0});
  const auto begun = pass(loader, 3, nullptr, 1);
  const auto mine = loader.distributed(0, 2);
  mine.load_state_dict(begun.state);
  Ids last, again;
  for (auto& batch : mine) last = ids_in(batch);
  EXPECT_EQ(mine.epoch(), 1);
  mine.seek(0, 3);
  EXPECT_EQ(mine.state_dict().at("samples").to_int(), 14);
  for (auto& batch : mine) again = ids_in(batch);
  EXPECT_EQ(again, last);
}

/// What each member gives from a state on, over all ranks.
std::map<std::string, Ids> members_of(const CombinedLoader<Batch>& loader, int world, const StateDict* from,
                                      int64_t at_most, StateDict& state) {
  std::map<std::string, std::vector<std::vector<Ids>>> of_members;
  for (int rank = 0; rank < world; ++rank) {
    const auto mine = loader.distributed(rank, world);
    if (from) mine.load_state_dict(*from);
    size_t step = 0;
    for (auto& batch : mine) {
      for (auto& [name, part] : batch) {
        auto& steps = of_members[name];
        steps.resize(std::max(steps.size(), step + 1));
        if (part) steps[step].push_back(ids_in(*part));
      }
      if (++step == static_cast<size_t>(at_most)) break;
    }
    if (rank == 0) state = mine.state_dict();
  }
  std::map<std::string, Ids> result;
  for (const auto& [name, steps] : of_members)
    for (const auto& one : steps)
      if (!one.empty()) append_step(result[name], one);
  return result;
}

TEST(ResumeOnAnyRanks, OfCombinedLoaders) {
  for (const std::string mode : {"max_size", "max_size_cycle", "sequential", "min_size"}) {
    const auto both = combine({{"a", numbered(120, {.batch_size = 2, .shuffle = true, .seed = 1})},
                               {"b", numbered(50, {.batch_size = 1, .shuffle = true, .seed = 2})}},
                              {.mode = mode});
    StateDict state, end;
    const auto order = members_of(both, 1, nullptr, 1000, end);
    for (int first = 1; first <= kMost; ++first)
      for (const int64_t stop : {2, 6}) {
        const auto begun = members_of(both, first, nullptr, stop, state);
        for (int then = 1; then <= kMost; ++then) {
          const auto what = mode + " " + std::to_string(first) + " then " + std::to_string(then);
          const auto rest = members_of(both, then, &state, 1000, end);
          for (const auto& [name, whole] : order) {
            // As long as it is in its first pass a member gives one order, over the resume.
            auto seen = begun.contains(name) ? begun.at(name) : Ids();
            if (rest.contains(name)) seen.insert(seen.end(), rest.at(name).begin(), rest.at(name).end());
            const auto pass_size = static_cast<size_t>(name == "a" ? 120 : 50);
            const auto both_have = std::min({seen.size(), whole.size(), pass_size});
            EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(both_have), whole.begin()))
                << what << " " << name;
            if (mode != "min_size") EXPECT_GE(seen.size(), pass_size) << what << " " << name;
          }
          EXPECT_EQ(end.at("epoch").to_int(), 1) << what;
        }
      }
  }
}

}  // namespace
}  // namespace levin
