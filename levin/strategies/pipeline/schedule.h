#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// One step of one rank of a pipeline. Stages are numbered through the whole model: with 4 ranks and 2 chunks each, 0
/// to 7. A plain value.
struct PipelineAction {
  enum class Kind : uint8_t {
    kForward,
    /// Gradients of input and weights at once.
    kBackward,
    /// The gradient of the input only. kBackwardWeight of the same stage and micro-batch follows later.
    kBackwardInput,
    kBackwardWeight,
    /// The output of `stage` goes to the rank of stage + 1.
    kSendForward,
    /// The input of `stage` comes from the rank of stage - 1.
    kReceiveForward,
    /// The gradient of the input of `stage` goes to the rank of stage - 1.
    kSendBackward,
    /// The gradient of the output of `stage` comes from the rank of stage + 1.
    kReceiveBackward,
  };
  Kind kind = Kind::kForward;
  int stage = 0;
  int microbatch = 0;
  /// The other rank of a send or receive; -1 for compute.
  int peer = -1;
  /// Sends and receives of one rank with the same number are posted together (one batch of isend and irecv). They
  /// follow each other in the list. -1 for compute.
  int group = -1;

  bool is_compute() const { return kind <= Kind::kBackwardWeight; }
  bool is_send() const { return kind == Kind::kSendForward || kind == Kind::kSendBackward; }
  bool is_receive() const { return kind == Kind::kReceiveForward || kind == Kind::kReceiveBackward; }
  bool operator==(const PipelineAction&) const = default;
};

/// torch's notation: "2F0" is the forward of stage 2 for micro-batch 0; B, I and W are backward, backward of the input
/// and backward of the weights; "2SEND_F0", "3RECV_F0", "3SEND_B0" and "2RECV_B0" are transfers.
std::string to_string(const PipelineAction& action);

/// Which rank has which stages.
enum class PipelinePlacement : uint8_t {
  /// Stage s is on rank s % ranks.
  kLoop,
  /// Two stages a rank, down and up again: stage s and stage 2 * ranks - 1 - s are on rank s.
  kV,
};

/// What every rank does in one step, in order. It is data: a runner carries it out, a simulator checks it, a command
/// draws it.
///
///     PipelineSchedule schedule = make_pipeline_schedule("1f1b", /*ranks=*/4, /*microbatches=*/8);
///     for (const PipelineAction& action : schedule.actions[rank]) ...
///
/// All lists are parts of one global order of compute and transfers. So the ranks cannot deadlock, even if every send
/// blocks until its receive is posted. A receive has to be complete before the forward or backward that uses it, a send
/// before the end of the step.
struct PipelineSchedule {
  std::string name;
  int ranks = 1;
  int chunks = 1;  ///< stages of a rank
  int microbatches = 1;
  PipelinePlacement placement = PipelinePlacement::kLoop;
  std::vector<std::vector<PipelineAction>> actions;  ///< of each rank

  int stages() const { return ranks * chunks; }
  int rank_of(int stage) const;
  /// The stages of a rank, in the order of the model.
  std::vector<int> stages_of(int rank) const;
};

/// Schedules that make_pipeline_schedule knows: gpipe, 1f1b, interleaved, zb1p, zbv.
std::vector<std::string> pipeline_schedule_names();

/// What a schedule is, without making it.
struct PipelineScheduleTraits {
  std::string name;
  std::string help;
  int default_chunks = 1;
  /// Only "interleaved" takes another number of chunks than its default.
  bool takes_chunks = false;
  /// Backward comes as kBackwardInput and kBackwardWeight.
  bool splits_backward = false;
  PipelinePlacement placement = PipelinePlacement::kLoop;
};
/// An unknown name is an Error with the nearest known one.
const PipelineScheduleTraits& pipeline_schedule_traits(std::string_view name);

/// The schedule of one step. `chunks` is the number of stages of a rank; 0 means the default of the schedule. Numbers
/// that a schedule cannot do are an Error with the arithmetic:
/// "interleaved" divides micro-batches into max(1, microbatches / ranks) equal rounds, as torch does, and refuses a
/// rest. Every other schedule takes any number of micro-batches, also fewer than stages.
PipelineSchedule make_pipeline_schedule(std::string_view name, int ranks, int microbatches, int chunks = 0);

/// Puts sends and receives into lists that hold compute only: what make_pipeline_schedule does last, for an order of
/// your own. An order in which a rank waits for what never comes is an Error that names both.
PipelineSchedule with_transfers(PipelineSchedule schedule);

}  // namespace levin
