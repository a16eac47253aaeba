#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/nn/checkpointing/activation_offload_copies.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/checkpointing/checkpointing_selective.h"
#include "levin/nn/checkpointing/checkpointing_state.h"
#include "levin/nn/saved_tensors.h"

namespace levin::detail {

/// What the checkpointed units of one attach_checkpointing share.
struct CheckpointSettings {
  CheckpointOptions options;
  std::shared_ptr<const KeptOperators> operators;  // null: all results are computed again
  std::shared_ptr<HostCopies> host;                // null: inputs stay on their device
};

/// What autograd checks of a saved tensor that has no hooks: nobody changed it since.
class SavedVersion {
 public:
  SavedVersion() = default;
  explicit SavedVersion(const Tensor& tensor);
  void check(const char* operation, const std::string& unit) const;
  bool changed() const;

 private:
  c10::VariableVersion counter_;
  uint32_t version_ = 0;
};

/// Tensors that are not activations: they live anyway, and are kept as they are.
class LivingStorages {
 public:
  /// `activations` are none of the module's, even if they look like parameters (leaves that want a gradient).
  LivingStorages(const torch::nn::Module& module, const std::vector<Tensor>& inputs,
                 const std::vector<Tensor>& activations = {});
  /// A parameter, a buffer or a view of one; or any leaf that wants a gradient. Full parameters that a sharded unit
  /// gathers are such: they come and go under the same storage.
  bool is_state(const Tensor& tensor) const;
  bool is_input(const Tensor& tensor) const;

 private:
  std::vector<const c10::StorageImpl*> state_, inputs_, activations_;
};

/// One call of a checkpointed unit: what it takes to run it again, and the tensors that running again gave.
class CheckpointFrame final : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  /// Runs the call; nothing when it must simply run.
  static void run(Call& call, std::shared_ptr<const CheckpointSettings> settings);
  /// Whether this thread runs a checkpointed unit, for the first time or again.
  static bool active();
  /// Gives a call that runs again its inputs, which were on the host.
  static void restore_inputs(Call& call);

  CheckpointFrame(Call& call, std::shared_ptr<const CheckpointSettings> settings, CheckpointFrame* parent);

  /// The saved tensor, recomputed when it is not there; it is handed out once.
  Tensor take(size_t index);
  /// Nobody will ask for that tensor any more.
  void release(size_t index) noexcept;
  const std::string& name() const { return name_; }

 private:
  struct ForwardHooks;
  struct RecomputeHooks;
  class Forward;
  class Recompute;
  struct Meta {
    std::vector<int64_t> sizes;
    c10::ScalarType dtype;
    c10::Device device;
    bool operator==(const Meta&) const = default;
  };
  /// A recomputed tensor, or where to find it: in the frame of a nested unit, which is recomputed on its own.
  struct Slot {
    Tensor tensor = {};
    std::shared_ptr<CheckpointFrame> nested = nullptr;
    size_t nested_index = 0;
    bool live = true;
    bool filled() const { return tensor.defined() || nested; }
    void clear();
  };

  struct HostInput {
    std::unique_ptr<HostCopy> copy;  // null: it stayed
    size_t first;                    // the same tensor stands there
    bool wants_grad;
  };

  void forward(Call& call);
  void move_to_host(const std::vector<Tensor>& own);
  void recompute();
  /// A tensor that forward saves; its index.
  size_t add(const Tensor& tensor);
  /// The next tensor when forward runs again, held here or by the frame of a nested unit; may end the forward.
  void fill(const Tensor& tensor, std::shared_ptr<CheckpointFrame> nested, size_t nested_index);
  /// Whether, with all tensors saved, forward does nothing any more but return, and nobody looks at what it returns.
  bool returns_next() const;
  /// Whether these are the last tensors that backward needs; may end the forward.
  bool has_all_with(std::span<const Tensor> saved, const LivingStorages& living);
  bool next_is_live() const { return next_ < slots_.size() && slots_[next_].live; }

  std::shared_ptr<const CheckpointSettings> settings_;
  std::string name_;
  torch::nn::Module* module_;   // kept alive by replay_
  CheckpointFrame* parent_;     // during the first forward only: the frame that runs again around it
  std::vector<Tensor> inputs_;  // as the replay sees them; empty tensors for those on the host
  std::vector<SavedVersion> versions_;
  std::vector<HostInput> on_host_;  // by input; empty: all stayed
  std::vector<Tensor> restored_;    // while running again
  std::function<void()> replay_;
  ForwardState state_;
  std::vector<Tensor> buffers_;
  std::optional<KeptResults> results_;
  std::vector<Meta> metas_;

  std::recursive_mutex mutex_;  // backward of a graph on several devices has several threads
  std::vector<Slot> slots_;
  Recompute* recomputing_ = nullptr;
  size_t next_ = 0;
  bool complete_ = false;    // the first forward has ended
  uint64_t nodes_ = 0;       // of autograd that this thread had made when the last tensor was saved
  bool ends_there_ = false;  // the unit returned then
  int watched_before_ = 0;   // results that were watched when running again began
};

}  // namespace levin::detail
