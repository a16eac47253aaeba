#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace torch::nn {
class Module;
}

namespace levin {

using at::Tensor;
using SavedTensorHooks = torch::autograd::SavedVariableHooks;

/// Decides how autograd keeps the tensors that an operation saves for its backward: dropped and recomputed, moved to
/// the host, counted.
class SavedTensors {
 public:
  virtual ~SavedTensors() = default;
  /// The hooks of one saved tensor, whichever it will be. `call_pack_hook` gets the tensor, under no-grad; hooks that
  /// hold a tensor with a grad_fn must hold `tensor.detach()`, or the graph never dies. `call_unpack_hook` runs in
  /// backward, possibly on another thread, once per backward through the operation. Autograd checks the version of
  /// tensors without hooks only. Hooks that hold a tensor of the forward say so by SavedTensorScope::note_kept.
  virtual std::unique_ptr<SavedTensorHooks> make() = 0;
  /// A scope further inside holds on to this tensor of the forward until backward (whatever else it does).
  virtual void kept(const Tensor&) {}
};

/// While it lives, operations of this thread save through `saved`. Scopes nest; the innermost one is asked.
///
/// The first scope of a process puts an autograd engine in front of the one that was there: it hands everything to that
/// one but the question for hooks, which cannot be answered in another way without Python. This may happen at any time,
/// also after a backward; the engine stays for the life of the process.
class [[nodiscard]] SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensors& saved);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  std::unique_ptr<SavedTensorHooks> hooks() const { return saved_.make(); }
  /// Hooks as they would be outside of this scope; null when tensors are simply held there.
  std::unique_ptr<SavedTensorHooks> outer_hooks() const;

  /// Whether operations of this thread save through it now.
  static bool is_innermost(const SavedTensors& saved);
  /// Tells every scope of this thread that the tensor is held until backward.
  static void note_kept(const Tensor& tensor);

 private:
  SavedTensors& saved_;
  SavedTensorScope* outer_;
};

/// Counts what autograd keeps for backward: the bytes of every storage that an operation of this thread saved while
/// this lives, each once, however it is kept (what activation checkpointing drops does not count, what it holds does).
/// Changes nothing else; works on meta tensors too, and holds no memory.
///
///     levin::SavedBytes saved(*model);
///     auto loss = model(x).sum();
///     std::cout << saved.bytes() << "\n";
class SavedBytes final : private SavedTensors {
 public:
  SavedBytes();
  /// Without the parameters and buffers of the module.
  explicit SavedBytes(const torch::nn::Module& ignored);
  ~SavedBytes() override;

  /// Storages of these tensors do not count, not even when they were counted before.
  void ignore(std::span<const Tensor> tensors);
  void ignore(const torch::nn::Module& module);
  void ignore(const Tensor& tensor) { ignore(std::span(&tensor, 1)); }

  int64_t bytes() const;
  int64_t bytes(c10::DeviceType device) const;
  /// Number of storages.
  int64_t storages() const { return static_cast<int64_t>(seen_.size()); }

 private:
  struct Hooks;
  struct Seen {
    // The weak reference keeps the address from being given to another storage, but not the data.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t bytes;
    c10::DeviceType device;
  };

  std::unique_ptr<SavedTensorHooks> make() override;
  void kept(const Tensor& tensor) override;

  std::unordered_map<const c10::StorageImpl*, Seen> seen_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> ignored_;
  std::unique_ptr<SavedTensorScope> scope_;
};

}  // namespace levin
