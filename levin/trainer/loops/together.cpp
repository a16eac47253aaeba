#include "levin/trainer/loops/together.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

/// One row of numbers of each rank.
Tensor rows_of_ranks(Run& run, const std::vector<int64_t>& own) {
  return run.fabric->all_gather(at::tensor(own, at::kLong).to(run.fabric->device())).cpu();
}

bool alone(const Run& run) {
  return run.fabric->world_size() == 1;
}

}  // namespace

void check_lengths(Run& run, std::string_view operation, const StageData& data) {
  if (alone(run) || data.batches.empty()) return;
  std::vector<int64_t> own;
  for (const auto& batches : data.batches) own.push_back(batches.value_or(-1));
  const auto all = rows_of_ranks(run, own);
  const auto rows = all.accessor<int64_t, 2>();
  for (size_t i = 0; i < own.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    for (int64_t rank = 1; rank < rows.size(0); ++rank) {
      const auto first = rows[0][at], here = rows[rank][at];
      if (first < 0 || here < 0) continue;  // what is not known shows at its end
      const auto name = data.name_of(i);
      LEVIN_CHECK(first == here, "[", operation, "] rank ", rank, "'s ", name, " has ", here, " batches, rank 0's has ",
                  first, "; every rank needs as many, or a limit that all of them have (limit_",
                  name.substr(0, name.find('_')), "_batches = ", std::min(first, here), ")");
    }
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
