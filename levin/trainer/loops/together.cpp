#include "levin/trainer/loops/together.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

/// One row of numbers of each rank.
Tensor rows_of_ranks(Run& run, const std::vector<int64_t>& own) {
  return run.fabric->all_gather(at::tensor(own, at::kLong).to(run.fabric->device())).cpu();
}

/// Names of what shared_order() says; the first tells whether it says anything, the last has none.
constexpr std::array kOrderNumbers{"", "a dataset of size", "batch_size", "seed", ""};
constexpr auto kNumbers = static_cast<int64_t>(kOrderNumbers.size());

std::array<int64_t, kOrderNumbers.size()> numbers_of(const std::optional<SharedOrder>& order) {
  if (!order) return {};
  return {1, order->dataset_size, order->batch_size, static_cast<int64_t>(order->seed),
          static_cast<int64_t>(order->rest)};
}

bool alone(const Run& run) {
  return run.fabric->world_size() == 1;
}

}  // namespace

void check_lengths(Run& run, std::string_view operation, StageData& data) {
  if (alone(run) || data.batches.empty()) return;
  const bool orders = !std::exchange(data.orders_compared, true);
  const auto loaders = static_cast<int64_t>(data.batches.size());
  std::vector<int64_t> own;
  for (const auto& batches : data.batches) own.push_back(batches.value_or(-1));
  if (orders)
    for (const auto& loader : data.loaders)
      for (const auto number : numbers_of(loader->shared_order())) own.push_back(number);
  const auto all = rows_of_ranks(run, own);
  const auto rows = all.accessor<int64_t, 2>();
  for (int64_t at = 0; at < loaders; ++at) {
    for (int64_t rank = 1; rank < rows.size(0); ++rank) {
      const auto first = rows[0][at], here = rows[rank][at];
      if (first < 0 || here < 0) continue;  // what is not known shows at its end
      const auto name = data.name_of(static_cast<size_t>(at));
      LEVIN_CHECK(first == here, "[", operation, "] rank ", rank, "'s ", name, " has ", here, " batches, rank 0's has ",
                  first, "; every rank needs as many, or a limit that all of them have (limit_",
                  name.substr(0, name.find('_')), "_batches = ", std::min(first, here), ")");
    }
  }
  for (int64_t at = 0; orders && at < loaders; ++at)
    for (int64_t rank = 1; rank < rows.size(0); ++rank) {
      const auto number = [&](int64_t of_rank, int64_t which) {
        return rows[of_rank][loaders + at * kNumbers + which];
      };
      if (number(0, 0) == 0 || number(rank, 0) == 0) continue;
      for (int64_t which = 1; which < kNumbers; ++which)
        if (const auto first = number(0, which), here = number(rank, which); first != here)
          throw Error(concat(
              "[", operation, "] rank ", rank, "'s ", data.name_of(static_cast<size_t>(at)), " has ",
              which < kNumbers - 1
                  ? concat(kOrderNumbers[static_cast<size_t>(which)], " ", here, ", rank 0's has ", first)
                  : std::string("another order of its samples than rank 0's (shuffle, sampler)"),
              "; the ranks take turns in one order, so some samples would come twice and others never: make the loader "
              "alike on every rank"));
    }
}

void note_batch(Run& run, std::string_view loader, int64_t batch, std::optional<int64_t> batches) {
  if (alone(run)) return;
  run.fabric->strategy().group().note_place(
      batches ? fmt::format("batch {} of {} of its {}, epoch {}", batch, *batches, loader, run.state.progress.epoch)
              : fmt::format("batch {} of its {}, epoch {}", batch, loader, run.state.progress.epoch));
}

void note_end(Run& run, std::string_view loader, int64_t batches) {
  if (alone(run)) return;
  run.fabric->strategy().group().note_place(
      fmt::format("its {} ended after {} batches of epoch {}", loader, batches, run.state.progress.epoch));
}

void note_stop(Run& run) {
  if (alone(run)) return;
  run.fabric->strategy().group().note_place(fmt::format("it was told to stop after {} batches of epoch {}",
                                                        run.state.progress.batch, run.state.progress.epoch));
}

void check_same_end(Run& run) {
  if (alone(run)) return;
  const bool stops = stops_now(run);
  const auto all = rows_of_ranks(run, {run.state.progress.batch, static_cast<int64_t>(stops)});
  const auto rows = all.accessor<int64_t, 2>();
  for (int64_t rank = 1; rank < rows.size(0); ++rank) {
    if (rows[rank][0] == rows[0][0]) continue;
    if (rows[rank][1] != rows[0][1]) {
      const bool first = rows[0][1] != 0;
      throw Error(concat("[trainer.fit] rank ", first ? 0 : rank, " was told to stop after ", rows[first ? 0 : rank][0],
                         " batches of epoch ", run.state.progress.epoch, ", rank ", first ? rank : 0,
                         " was not; stop() must be called on every rank, request_stop() on any"));
    }
    throw Error(concat("[trainer.fit] rank ", rank, "'s train_dataloader ended after ", rows[rank][0],
                       " batches, rank 0's after ", rows[0][0], "; every rank needs as many"));
  }
}

void agree_to_stop(Run& run) {
  if (alone(run)) return;
  auto wanted = at::tensor({static_cast<int64_t>(run.state.should_stop)}, at::kLong).to(run.fabric->device());
  wanted = run.fabric->all_reduce(wanted, "max");
  if (wanted.item<int64_t>() != 0) stop(run, "asked for by a rank");
}

}  // namespace levin::detail
