#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "levin/nn/checkpointing/activation_offload.h"

namespace levin::detail {

class HostCopies;

/// The memory of one or more tensors, on the host.
struct HostMemory {
  Tensor host;  // bytes
  c10::Device device;
  c10::weak_intrusive_ptr<c10::StorageImpl> source;
  const c10::StorageImpl* key;
  int64_t version;

  // Back on the device: held until all of the group that asked have taken it, then seen by those that use it.
  Tensor back = {};
  c10::weak_intrusive_ptr<c10::StorageImpl> seen{c10::intrusive_ptr<c10::StorageImpl>()};
  std::optional<c10::Event> arrived = {};
  uint64_t trip = 0;
  size_t group = 0;
  int left = 0;
  std::map<size_t, int> users = {};  // copies by group

  ~HostMemory() { drop(); }
  void drop() noexcept;
};

/// A tensor that waits on the host; the same shape, strides and dtype when it is back.
class HostCopy {
 public:
  HostCopy(std::shared_ptr<HostCopies> owner, std::shared_ptr<HostMemory> memory, const Tensor& tensor, size_t group);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  /// On the device again, ordered after the copy on the current stream. As often as needed.
  Tensor get();
  const Tensor& host() const { return memory_->host; }

 private:
  friend class HostCopies;
  std::shared_ptr<HostCopies> owner_;
  std::shared_ptr<HostMemory> memory_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_;
  c10::ScalarType dtype_;
  size_t group_;
  uint64_t taken_ = 0;
};

/// Copies of tensors on the host, in groups: one for each call of a unit. The first tensor of a group that comes back
/// brings the rest of its group and the group before it along.
class HostCopies final : public std::enable_shared_from_this<HostCopies> {
 public:
  explicit HostCopies(const OffloadOptions& options) : options_(options) {}

  void begin_group();
  /// Null when the tensor stays where it is: small, without memory of its own, or already on the host's side of
  /// everything (meta).
  std::unique_ptr<HostCopy> put(const Tensor& tensor);

 private:
  friend class HostCopy;
  struct InFlight {
    c10::Storage source;
    c10::Event done;
    c10::Stream compute;
  };

  Tensor get(HostCopy& copy);
  void release(HostCopy& copy) noexcept;
  std::shared_ptr<HostMemory> copy_out(const Tensor& tensor);
  void bring_back(HostMemory& memory, size_t group);
  void bring_back_group(size_t group);
  void let_go();
  c10::Stream side_stream(c10::Device device);

  const OffloadOptions options_;
  std::recursive_mutex mutex_;
  size_t group_ = 0;
  std::optional<size_t> current_;  // whose turn it is in backward
  std::map<size_t, std::vector<std::weak_ptr<HostMemory>>> groups_;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<HostMemory>> by_source_;
  std::deque<InFlight> in_flight_;
  std::vector<c10::Stream> streams_;
};

}  // namespace levin::detail
