#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "levin/core/error.h"

/// Steps that are captured once in a CUDA graph and replayed. The classes know a device through GraphDevice only, so
/// that all but the capture itself works, and is tested, without CUDA.
namespace levin::detail {

using at::Tensor;

/// Why a step cannot be captured. It ends the capture; the step then runs eagerly.
class CaptureRefused : public Error {
 public:
  using Error::Error;
};

/// Gradients turned out to live from one call to the next.
class GradientsAccumulate : public CaptureRefused {
 public:
  GradientsAccumulate() : CaptureRefused("[compile] gradients of earlier calls are added to") {}
};

/// A captured graph. It holds the memory that its kernels use.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Gives the work to the current stream. The host does not wait.
  virtual void replay() = 0;
  /// Ends its life while others may still hold it: a group of ranks cannot end before the graphs that communicate in
  /// it.
  virtual void destroy() {}
  /// Why it cannot be used any more; empty: it can.
  virtual std::string why_unfit() const { return {}; }
  /// Whether it is to be captured again.
  virtual bool is_outdated() const { return false; }
};

/// What captures graphs on one device. All its graphs share a memory pool: memory that is free after one capture is
/// used by the next, so what a graph computed lasts until another one is replayed, unless a tensor holds it.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  virtual c10::Device device() const = 0;
  /// The stream that captures; none where there are no streams.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }
  /// Runs `body`, whose work on the device is captured and not executed. When `body` throws, or the capture is invalid,
  /// the stream, the allocator and the random generator are as before, and the exception passes on.
  virtual std::shared_ptr<DeviceGraph> capture(const std::function<void()>& body) = 0;
  /// Before a capture: tensors whose contents are others at each replay.
  virtual void set_inputs(const std::vector<Tensor>& /*inputs*/) {}
  /// How many nodes the capture under way has so far. Any thread.
  virtual int64_t captured_nodes() const { return 0; }
  /// Which nodes of the capture under way are kernels, in the order in which they run. Empty where they do not run one
  /// after the other, or nobody knows.
  virtual std::vector<bool> captured_kernels() const { return {}; }
  /// Copies to the device in the order of the current stream. `host` may be changed at once.
  virtual void upload(const Tensor& to, const void* host, size_t bytes) = 0;
  /// A tensor over the memory of another that keeps `graph` alive but does not hold the memory.
  virtual Tensor alias(const Tensor& tensor, std::shared_ptr<DeviceGraph> graph) = 0;
  /// Gives memory back that the allocator keeps for reuse.
  virtual void empty_cache() = 0;
  /// Whether what autograd does on that stream becomes part of a graph.
  virtual bool captures(const std::optional<c10::Stream>& work) const { return work && work == stream(); }
};

/// graphs_cuda.cpp, or its twin no_cuda.cpp, where it is an Error.
std::shared_ptr<GraphDevice> cuda_graphs(c10::Device device);
/// The stream on which all graphs of a device are captured. What autograd keeps from step to step (the ends of its
/// graph, where a reducer holds them) is to be made on it.
c10::Stream graph_stream(c10::Device device);

/// Small values in device memory that the host works out before each replay, such as a learning rate.
class RefreshedValues {
 public:
  using Fill = std::function<void(void* host)>;

  /// Allocates, so it is to be made before the capture.
  explicit RefreshedValues(c10::Device device);

  /// Device memory of `bytes` bytes, aligned to 16, which holds what `fill` wrote at the last refresh().
  const void* add(size_t bytes, Fill fill);
  /// Calls every `fill`, and uploads where a byte has changed since the last time.
  void refresh(GraphDevice& device);
  /// Uploads so far.
  int64_t uploads() const { return uploads_; }

 private:
  struct Value {
    size_t chunk, offset;
    Fill fill;
  };
  /// One upload.
  struct Chunk {
    Tensor memory;
    std::vector<std::byte> host, sent;
    size_t used = 0;
  };

  Tensor memory_;
  std::vector<Value> values_;
  std::vector<Chunk> chunks_;
  int64_t uploads_ = 0;
};

/// Conditions that must hold in every replay. The host learns of a failure without waiting, at a later replay.
class DeferredChecks {
 public:
  /// Allocates, so it is to be made before the capture.
  explicit DeferredChecks(c10::Device device);
  /// Part of the graph: `failed` is one element on the device.
  void add(const Tensor& failed, std::string line);
  /// Once, between the capture and the first replay.
  void start();
  /// After a replay: looks at what has arrived, and sends for more. An Error with the line of the check that failed.
  void look();

 private:
  /// A flag for each line.
  Tensor failed_;
  std::vector<std::string> lines_;
  Tensor host_;
  std::optional<c10::Event> arrived_;
};

/// What code inside a compiled step may need to know. One at a time in a process: it counts on the thread that has
/// entered it and on those of a backward, and not on others, such as a loader's.
struct StepScope {
  /// Null: the step runs eagerly.
  RefreshedValues* values = nullptr;
  DeferredChecks* checks = nullptr;
  /// Gradients keep their memory from one call to the next: zero_grad fills with zeros instead of freeing.
  bool keeps_gradients = false;
  /// All ranks capture or replay this call, or none does: what they exchange can be part of the graph.
  bool ranks_agree = false;
};

/// Makes a scope the current one for its life.
class EnterStep {
 public:
  explicit EnterStep(const StepScope& scope);
  ~EnterStep();
  EnterStep(const EnterStep&) = delete;
  EnterStep& operator=(const EnterStep&) = delete;

 private:
  const StepScope* outer_;
  std::thread::id outer_thread_;
};

/// The compiled step under way; null outside of one.
const StepScope* current_step();
/// Whether work on the device is captured now.
bool is_capturing();
/// Whether the step under way works on gradients that keep their memory from call to call.
bool keeps_gradients();
/// Ends a capture: "[compile] <reason>". Nothing outside of one.
void refuse_capture(const std::string& reason);
/// `RefreshedValues::add` of the capture under way; null outside of one.
const void* refreshed(size_t bytes, RefreshedValues::Fill fill);

}  // namespace levin::detail
