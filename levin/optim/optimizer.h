#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"

namespace levin {

namespace optim {
struct OptimizerClass;
}

using at::Tensor;

/// What the loss scaler tells an optimizer for one step: gradients are still multiplied by `scale` (undefined: they are
/// not), and nothing may change where `found_inf` is non-zero. Both stay on the device, so that nobody waits for it.
struct GradScale {
  Tensor scale;
  Tensor found_inf;
};

/// One tensor of the state that an optimizer keeps for a parameter: "exp_avg", ...
struct OptimizerSlot {
  std::string name;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// What an optimizer says of itself: strategies that shard parameters, and memory estimates, go by it alone.
struct OptimizerTraits {
  /// Each element is stepped by its own value, gradient and state, whatever the other elements of its tensor are (SGD,
  /// Adam). Then a shard is stepped as it would be within the full parameter. False where norms, means, rows or columns
  /// of a full tensor count (LAMB, Adafactor, LBFGS).
  bool elementwise = false;
  /// Sums over all elements of a tensor are all that it needs besides (the norms of LAMB), and it takes them from
  /// `ParamShards::sum`. Then it steps shards as it would the full parameter.
  bool tensor_sums = false;
  /// The state of a parameter of these sizes and this dtype; empty: not known. Called while the optimizer lives.
  std::function<std::vector<OptimizerSlot>(at::IntArrayRef sizes, c10::ScalarType dtype)> slots = {};
  /// Tensors of a parameter's size that a step allocates.
  int temporaries = 0;
  /// Takes gradients of a narrower dtype than their parameters as they are; else they are cast for its step.
  bool narrow_gradients = false;
};

/// The shard that a rank has of a parameter: its first element in the full parameter, and how many elements that has.
struct ParamShard {
  int64_t first = 0;
  int64_t full_numel = 0;
};

/// What a strategy that shards parameters tells an optimizer about them.
struct ParamShards {
  /// None: the rank has the full parameter.
  std::function<std::optional<ParamShard>(const Tensor& param)> find = {};
  /// Sums over the shards of all ranks. `local` [params, n] has sums over this rank's elements of each parameter; the
  /// result is of the same shape. Every rank must call, with the same parameters.
  std::function<Tensor(const Tensor& local, std::span<const Tensor> params)> sum = {};
};

/// The interface of an optimizer. Users hold the handle, `Optimizer`.
class OptimizerImpl {
 public:
  virtual ~OptimizerImpl() = default;

  /// "AdamW"
  virtual std::string name() const = 0;
  /// None: it does not say. It works where every rank has full parameters, and is refused where they are sharded.
  virtual std::optional<OptimizerTraits> traits() const { return std::nullopt; }
  /// One update. Parameters without a gradient are passed over.
  virtual void step() = 0;
  /// One update under a loss scaler without waiting for the device; false when this optimizer cannot, and nothing was
  /// done.
  virtual bool step_scaled(const GradScale&) { return false; }
  /// One update that evaluates the closure itself, with gradients enabled; returns its loss. The default evaluates it
  /// once, then steps; an optimizer with a line search evaluates it as often as it must.
  virtual Tensor step_with(const std::function<Tensor()>& closure);
  virtual void zero_grad(bool set_to_none) = 0;

  virtual size_t num_groups() const = 0;
  virtual std::vector<Tensor>& params(size_t group) = 0;
  /// A hyperparameter of a group by torch's name: "lr", "initial_lr", "momentum", "beta1", "beta2", "weight_decay", ...
  /// `find` gives null when the optimizer has none of that name. The address is stable: schedulers keep it.
  /// "initial_lr" is NaN until a scheduler has set it.
  virtual double* find_hyper(size_t group, std::string_view name) = 0;
  /// The names that find_hyper knows, for error messages.
  virtual std::vector<std::string> hyper_names() const { return {"lr"}; }
  /// One more group. `options` are numbers by torch's names; what is left out is as the optimizer was made with. By
  /// default an Error: not every optimizer can.
  virtual void add_param_group(std::vector<Tensor> params, const StateDict& options);

  /// State that is made from now on is allocated by `make`: a tensor of the size of the one it is given, dense, on the
  /// host. False when this optimizer cannot.
  virtual bool set_slot_memory(std::function<Tensor(const Tensor& like)>) { return false; }

  /// Parameters are shards from now on. An optimizer whose traits say that it is elementwise may leave this alone.
  virtual void set_shards(ParamShards) {}

  virtual StateDict state_dict() const = 0;
  /// An Error where load_state_dict would refuse this state; nothing is changed. True: load_state_dict will take it.
  /// False: that is not known before it has tried.
  virtual bool check_state_dict(const StateDict&) { return false; }
  /// Whether load_state_dict takes this state with tensors on the meta device too: it makes room for them, and who
  /// loads writes their values to what state_dict() has then under the same names. So nothing is in memory twice.
  virtual bool makes_room(const StateDict&) const { return false; }
  /// Moves loaded state to the device and dtype of each parameter.
  virtual void load_state_dict(const StateDict& state) = 0;

  /// Called before its step is captured in a CUDA graph: makes ready what cannot be made then. Returns why its step
  /// cannot be replayed; empty: it can, and hyperparameters that change later count in the replays.
  virtual std::string prepare_capture();
  /// Changes when the memory that its step works on, or how, is another: a step captured before does not fit any more.
  virtual uint64_t layout_version() const { return 0; }

  /// One update of some of the parameters alone, those of them that have gradients; the state of others, and their step
  /// counters, stay as they are. False when this optimizer cannot, or cannot under a scale, and nothing was done.
  /// `copies` is empty, or has for each parameter a 16-bit tensor that gets its new value (an undefined one gets none).
  /// Any thread may call it, one at a time and not beside another method.
  virtual bool step_params(std::span<const Tensor>, const GradScale* = nullptr, std::span<const Tensor> = {}) {
    return false;
  }
};

/// A handle to an optimizer, as Tensor is one to its data: copies share, an empty one exists.
class Optimizer {
 public:
  Optimizer() = default;
  explicit Optimizer(std::shared_ptr<OptimizerImpl> impl) : impl_(std::move(impl)) {}

  void step() { get().step(); }
  /// Evaluates the closure with gradients enabled, then steps; returns the closure's loss.
  Tensor step(const std::function<Tensor()>& closure);
  /// Sets gradients to none, or fills them with zeros.
  void zero_grad(bool set_to_none = true) { get().zero_grad(set_to_none); }

  std::string name() const { return get().name(); }
  std::optional<OptimizerTraits> traits() const { return get().traits(); }
  size_t num_groups() const { return get().num_groups(); }
  std::vector<Tensor>& params(size_t group = 0) const { return get().params(group); }
  /// Parameters of all groups.
  std::vector<Tensor> all_params() const;
  double lr(size_t group = 0) const { return hyper("lr", group); }
  void set_lr(double lr, size_t group = 0) const { hyper("lr", group) = lr; }
  /// A hyperparameter by name; an Error when the optimizer has none of that name.
  double& hyper(std::string_view name, size_t group = 0) const;
  /// More parameters, as a new last group: `opt.add_param_group(layer->parameters(), {{"lr", 1e-4}})`. Options that are
  /// not named are those the optimizer was made with. Schedulers that exist already leave the new group alone.
  void add_param_group(std::vector<Tensor> params, const StateDict& options = {}) const {
    get().add_param_group(std::move(params), options);
  }

  StateDict state_dict() const { return get().state_dict(); }
  void load_state_dict(const StateDict& state) const { get().load_state_dict(state); }

  explicit operator bool() const { return impl_ != nullptr; }
  const std::shared_ptr<OptimizerImpl>& impl() const { return impl_; }

 protected:
  /// The optimizer; an Error when this handle is empty.
  OptimizerImpl& get() const {
    if (!impl_) [[unlikely]]
      fail_empty();
    return *impl_;
  }
  [[noreturn]] static void fail_empty();

  std::shared_ptr<OptimizerImpl> impl_;
};

}  // namespace levin
