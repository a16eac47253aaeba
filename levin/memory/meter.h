#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::detail {

using at::Tensor;

/// How an allocator rounds what is asked of it.
enum class Rounding : uint8_t {
  /// The CPU: not at all.
  kNone,
  /// CUDA's caching allocator: to 512 bytes, and blocks of 10 MiB and more to 2 MiB where that leaves less than a
  /// block's worth over.
  kCuda,
};
int64_t round_allocation(int64_t bytes, Rounding rounding);

/// Records every allocation and free of meta tensors on this thread while it lives: tensors without memory have
/// storages that are allocated and freed as real ones are. One at a time.
class MetaMeter {
 public:
  struct Event {
    /// Of the storage, counted from 0.
    int32_t id;
    /// Negative: it was freed.
    int64_t bytes;
  };

  explicit MetaMeter(Rounding rounding);
  ~MetaMeter();
  MetaMeter(const MetaMeter&) = delete;
  MetaMeter& operator=(const MetaMeter&) = delete;

  const std::vector<Event>& events() const;
  /// Number of storages so far; ids are smaller.
  int32_t storages() const;
  int64_t live() const;
  /// The storage of a tensor, -1 when it was not made under this meter.
  int32_t id_of(const Tensor& tensor) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace levin::detail
