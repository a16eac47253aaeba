#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "levin/environments/environment.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace levin {

using at::Tensor;

class FailureExchange;

enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

/// "sum", "mean"/"avg", "min", "max", "prod"; an unknown word is an Error.
ReduceOp reduce_op(std::string_view word);

/// A tensor on its way from one rank of a group to another.
struct Message {
  /// Dense. What comes is written into it.
  Tensor tensor;
  /// The other rank, by rank of the group.
  int peer = 0;
  /// Finds the receive of a send; 0 to 2^20 - 1. Messages of one pair of ranks and one tag stay in order.
  int tag = 0;
  bool receives = false;
};

/// Messages that are under way. It keeps their tensors.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Until all have arrived; on a GPU with NCCL the current stream waits, not the host. Once.
  virtual void wait() = 0;
};

/// Communication among the ranks of a group. Every rank of the group must call the same operations in the same order;
/// the calls check that (operation, shape, dtype) before any data moves, and a mismatch, a rank that has died or one
/// that does not come within the timeout is an Error, on every surviving rank, that names the operation and the ranks.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// In place.
  virtual void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  /// [world_size, ...tensor.sizes()]
  virtual Tensor all_gather(const Tensor& tensor) = 0;
  /// In place, from rank `src` of the group.
  virtual void broadcast(Tensor& tensor, int src = 0) = 0;
  /// `input` is [world_size * n, ...]; returns this rank's [n, ...] of the reduced whole.
  virtual Tensor reduce_scatter(const Tensor& input, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void barrier(std::string_view name = "barrier") = 0;
  /// Meets all ranks; an Error, on each of them, that says which rank calls what unless all are about to do the same.
  virtual void agree(std::string_view operation, const std::string& call);

  /// PyTorch's own group, for c10d::Reducer and the like; null when there is only one process.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> process_group() const = 0;
  /// The key-value store of the run, kept apart for this group; null when there is only one process.
  virtual c10::intrusive_ptr<c10d::Store> store() const = 0;

  /// Runs operations of PyTorch's own group without the checks, for inner loops; what fails in them is this group's
  /// Error. Only where size() > 1.
  virtual void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body);
  /// Where in the program this rank is ("epoch 0, batch 3 of training") and what it does there ("forward of block3"):
  /// lines about ranks that wait for it, or that it waits for, say so. Cheap enough for every batch.
  virtual void note_place(std::string_view /*place*/) {}
  virtual void note_doing(std::string_view /*doing*/) {}
  /// How the ranks agree on why the group ended; null when there is only one process.
  virtual FailureExchange* failures() { return nullptr; }

  /// One number of each rank, on every rank, by rank. The host waits for the others; one message, for every step.
  virtual std::vector<int64_t> exchange(std::string_view /*operation*/, int64_t number) { return {number}; }

  /// Whether operations on tensors of a GPU are work of its streams, which a CUDA graph can hold.
  virtual bool is_stream_work() const { return true; }
  /// Work of the device that communicates, and that nobody else watches: the group ends when `is_done`, which any
  /// thread may call, does not say so within the timeout.
  virtual void watch_work(std::function<bool()> /*is_done*/) {}
  /// Called before this rank ends the group because of a failure. NCCL does not end before the graphs that use it.
  virtual void set_before_abort(std::function<void()>) {}

 protected:
  /// The group of some ranks of this one, of which this rank is one; `name` is the same on all of them and new to the
  /// store.
  virtual std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) = 0;
  friend std::shared_ptr<Collective> split_group(Collective& parent, const std::vector<std::vector<int>>& groups,
                                                 std::string_view name);

 public:
  /// Starts sends and receives, all at once (one batch of isend and irecv). Only the ranks at both ends take part, and
  /// nothing is checked in advance: sizes and dtypes of both ends must agree. What fails names `operation`.
  virtual std::unique_ptr<Transfer> start(std::string_view operation, std::vector<Message> messages);

  /// A barrier after work of some ranks whose length nobody knows, such as a download: as long as they are alive there
  /// is no timeout.
  virtual void barrier_without_timeout(std::string_view name) { barrier(name); }
};

/// Sends a string from `src` to all.
std::string broadcast_string(Collective& group, std::string text, int src = 0);
/// One string of each rank, on every rank, by rank.
std::vector<std::string> gather_strings(Collective& group, const std::string& text);

/// Rows of the first dimension to the ranks: `sent[i]` of them, in order, go to rank i. Returns the rows that come,
/// `received[i]` from rank i, by rank. What one rank sends is what the other expects; all but the first dimension is
/// the same everywhere. Every rank must call.
Tensor all_to_all(Collective& group, const Tensor& input, std::span<const int64_t> sent,
                  std::span<const int64_t> received);

struct CollectiveOptions {
  /// "auto": nccl when each rank has a GPU of its own, else gloo. "gloo", "nccl".
  std::string backend = "auto";
  /// How long any operation may wait for the other ranks. Defaults to 5 min.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// How long to wait for all ranks to arrive at the start.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
  /// After so long in one operation a line says for whom this rank waits and what that one does. None: the variable
  /// LEVIN_WAIT_WARNING in seconds, or 30 s.
  std::optional<std::chrono::milliseconds> wait_warning = {};
  /// A rank that others wait for and that gives no sign of life for so long ends the run: it is stopped, or its machine
  /// is gone. A rank that only computes does give signs. None: the variable LEVIN_SILENCE_TIMEOUT in seconds, or 30 s.
  std::optional<std::chrono::milliseconds> silence_timeout = {};
};

/// Tells the other ranks why this one is about to leave, so that they stop waiting for it and name the reason. For
/// whoever catches an exception that did not come from the group. Without effect on a group that has ended already.
void report_failure(Collective& group, std::string_view line) noexcept;

/// Joins the group of all ranks; a placement with world_size 1 gives a group of one that communicates with nobody.
/// Every rank must call. The Error for ranks that do not arrive names them.
std::shared_ptr<Collective> join_group(const Placement& placement, c10::Device device,
                                       const CollectiveOptions& options = {});

/// A part of a group. Every rank of `parent` must call with the same list of groups; returns the one this rank is in,
/// or null when it is in none. A group of one rank communicates with nobody.
std::shared_ptr<Collective> split_group(Collective& parent, const std::vector<std::vector<int>>& groups,
                                        std::string_view name);

}  // namespace levin
