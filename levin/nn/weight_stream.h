#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "levin/core/worker_thread.h"
#include "levin/nn/interceptor.h"

namespace torch::nn {
class Module;
}

namespace levin {

/// The parameters and buffers of modules, one behind the other in one piece of memory. A tensor that several of the
/// modules have is there once.
struct FlatTensors {
  explicit FlatTensors(const std::vector<torch::nn::Module*>& modules);

  /// The tensors in `flat` (bytes), in the order of `tensors`.
  std::vector<Tensor> views(const Tensor& flat) const;
  /// Copies their numbers to `flat`, on any device.
  void copy_to(const Tensor& flat) const;

  std::vector<Tensor> tensors;
  /// Where each begins: a multiple of 256, as memory of its own would.
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

/// Where the bytes of a streamed unit lie: one of the two.
struct WeightSource {
  /// In host memory: pinned for a CUDA device. Units may share it.
  Tensor host = {};
  /// Writes them to memory of the host. Called by another thread; what it throws is thrown by the unit's forward.
  std::function<void(const Tensor& into)> read = {};
};

/// Weights that are on the device only while their unit computes. They come one unit ahead, over a stream of their own,
/// into two buffers that take turns; on the CPU a thread reads them. The numbers are those of a model that is on the
/// device all the time: the same kernels work on the same bytes.
///
///     auto stream = std::make_shared<WeightStream>(device);
///     stream->add("blocks.7", {block.ptr().get()}, flat, {.host = pinned});
///
/// Forward passes of one thread at a time, without gradients. A CUDA graph cannot have captured them.
class WeightStream final : public Interceptor, public std::enable_shared_from_this<WeightStream> {
 public:
  explicit WeightStream(c10::Device device);
  ~WeightStream() override;

  /// The tensors of `flat` lose their memory and have it while one of `modules` (units all) runs. The order of calls
  /// is the order of adding at first, later what was seen.
  void add(std::string name, const std::vector<torch::nn::Module*>& modules, const FlatTensors& flat,
           WeightSource source);
  /// Allocates the buffers, which the first call does otherwise: others then see what memory is left.
  void make_buffers();
  void around(Call& call) override;

  /// What the buffers take on the device: twice the largest unit, or all where there are no more than two.
  int64_t buffer_bytes() const;
  /// Bytes that came so far, and units that were not there when they were called.
  int64_t streamed_bytes() const { return streamed_; }
  int64_t misses() const { return misses_; }

 private:
  struct Entry {
    std::string name;
    int64_t bytes;
    Tensor shown;  // hollow, of the tensors
    WeightSource source;
  };
  /// One that calls: two of them have the same entry where they are tied.
  struct Caller {
    size_t entry;
    const Unit* next = nullptr;
  };
  struct Buffer {
    std::optional<size_t> entry = {};
    Tensor memory = {};
    Tensor staged = {};  // pinned, for what is read from a disk
    bool is_sent = false;
    std::optional<c10::Event> arrived = {}, used = {};
  };

  Buffer* find(size_t entry);
  /// Takes the buffer for an entry and begins to read it.
  void begin(Buffer& buffer, size_t entry);
  /// Its bytes are on their way to the device.
  void send(Buffer& buffer);
  Buffer& bring(size_t entry);

  const c10::Device device_;
  std::vector<Entry> entries_;
  std::unordered_map<const Unit*, Caller> callers_;
  const Unit* first_ = nullptr;
  const Unit* latest_added_ = nullptr;
  const Unit* latest_ = nullptr;
  Buffer buffers_[2];
  Buffer* in_use_ = nullptr;
  std::optional<c10::Stream> side_;
  int64_t streamed_ = 0, misses_ = 0;
  detail::WorkerThread reader_;  // last: it ends before what it writes to
};

/// Whether a unit of the model has its weights only while it runs (streamed or sharded).
bool has_streamed_units(const torch::nn::Module& model);

}  // namespace levin
