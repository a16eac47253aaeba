#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace levin::detail {

class Run;
struct StageData;

// What keeps the ranks of a run at the same batch. All of it does nothing with one process.

/// Loaders that know how many batches they have must have the same number on every rank, and those that the ranks share
/// one order of the samples: an Error on all of them that names loaders, ranks and what differs. Every rank must call.
void check_lengths(Run& run, std::string_view operation, StageData& data);

/// For lines about ranks that wait for this one.
void note_batch(Run& run, std::string_view loader, int64_t batch, std::optional<int64_t> batches);
void note_end(Run& run, std::string_view loader, int64_t batches);
void note_stop(Run& run);

/// After the batches of a training epoch: an Error on all ranks unless all have made as many, and end for the same
/// reason. Every rank must call.
void check_same_end(Run& run);

/// Where all ranks are at the same place: one that was told to stop stops all.
void agree_to_stop(Run& run);

}  // namespace levin::detail
