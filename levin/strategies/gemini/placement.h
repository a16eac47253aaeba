#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levin/strategies/gemini/memory_monitor.h"
#include "levin/strategies/gemini/use_trace.h"
#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

enum class PlacementPolicy : uint8_t { kAuto, kCuda, kCpu, kStatic };
/// "auto", "cuda", "cpu", "static"; another word is an Error.
PlacementPolicy placement_policy(const std::string& word);

/// A chunk as the placement sees it.
struct ChunkResidence {
  enum class Where : uint8_t { kAway, kComing, kHere };
  std::string name;
  /// Of the gathered chunk, and of what its shards are gathered into until it is put together from them; 0: they are
  /// gathered in place.
  int64_t bytes = 0;
  int64_t arriving_bytes = 0;
  /// Stays gathered within a step.
  bool keep = false;
  Where where = Where::kAway;
  /// A unit computes with it: it cannot be evicted.
  bool computing = false;
  int64_t last_use = -1;

  int64_t bytes_now() const {
    return where == Where::kAway ? 0 : where == Where::kHere || arriving_bytes == 0 ? bytes : arriving_bytes;
  }
};

struct PlacementOptions {
  PlacementPolicy policy = PlacementPolicy::kAuto;
  /// Bytes of the device, and the fractions of it that parameters may use in a step that is recorded, and that
  /// everything may use later. For "auto" alone.
  int64_t capacity = 0;
  double warmup_model_ratio = 0.2;
  double steady_ratio = 0.9;
  int max_prefetch = 1;
  /// Replaces each number by the greatest of all ranks: ranks must come to the same decisions, or they would wait for
  /// chunks that others still have. Null: there is one rank.
  std::function<void(std::vector<int64_t>&)> max_over_ranks = {};
  /// Called when the first training step was recorded, with the most that was in memory in it ("auto").
  std::function<void(int64_t)> after_record = {};
};

/// Decides which chunks are gathered on the device at what time.
///
/// The first step of a kind (training, evaluation) is recorded: which chunks are used, one after the other, and with
/// "auto" how much memory everything else takes meanwhile. From then on chunks are brought before their time, and when
/// there is no room those leave that are needed last. A step that turns out to be another than the recorded one is
/// finished with the care of a first one, and the next is recorded.
class Placement {
 public:
  struct Counts {
    int64_t uses = 0;
    int64_t evicted = 0;
    int64_t prefetched = 0;
    int64_t mismatches = 0;
    int64_t recorded = 0;
  };

  /// `source` is needed for "auto".
  Placement(PlacementOptions options, std::vector<ChunkResidence> chunks, std::unique_ptr<MemorySource> source);

  std::vector<ChunkResidence>& chunks() { return chunks_; }
  const std::vector<ChunkResidence>& chunks() const { return chunks_; }
  /// Bytes of chunks on the device now.
  int64_t model_bytes() const;

  void begin_pass(Pass pass, bool training);
  void end_pass(Pass pass);
  /// These chunks are about to be computed with: which others have to leave first, in order. An Error when there is no
  /// room even so. Whoever calls it keeps `chunks()` up to date.
  std::vector<int> make_room(std::span<const int> needed);
  /// The parameters in memory are about to change otherwise than by make_room, and did.
  void layout_changing();
  void layout_changed();
  /// Chunks to bring before their time, and those that leave for them.
  struct Ahead {
    std::vector<int> leave;
    std::vector<int> bring;
  };
  Ahead ahead(std::span<const int> needed);
  /// Nobody computes with the chunk any more in this pass: whether it stays.
  bool keeps(int chunk, Pass pass);
  /// Its gradients were handed to the reduction.
  void reduced(int chunk);

  bool recorded() const { return record_ && record_->ready; }
  bool recording() const { return record_ && record_->recording; }
  const Counts& counts() const { return counts_; }
  /// Forgets a pass that failed.
  void abandon();

 private:
  struct Record {
    UseTrace trace;
    std::vector<MemoryPeriod> periods;
    int64_t clock = 0;
    bool open = false;
    bool recording = false;
    bool complete = false;  // recorded; ranks have not agreed yet
    bool ready = false;
    int64_t excess = 0;       // agreed: so much more than recorded is in use
    int64_t seen_excess = 0;  // by this rank
    int64_t steps = 0;
  };
  enum Kind : size_t { kTraining, kEvaluation };

  void begin_step(Record& record);
  void finish_step(Record& record);
  void agree(Record& record);
  void agree_on_excess(Record& record);
  void drop(Record& record);
  void follow(Record& record, std::span<const int> needed);
  int64_t next_use(int chunk) const;
  bool needed_next(int chunk) const;
  std::vector<int> by_eviction(std::span<const int> needed) const;

  PlacementOptions options_;
  std::vector<ChunkResidence> chunks_;
  std::unique_ptr<MemoryMonitor> monitor_;
  Record records_[2];
  Record* record_ = nullptr;
  int64_t now_ = 0;  // over all steps, for the order in which chunks were last used
  int64_t overall_peak_ = 0;
  bool first_ = true;
  Counts counts_;
};

}  // namespace levin::detail
