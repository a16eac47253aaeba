#pragma once

#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/kernels/fused_step/adam.h"
#include "levin/optim/optimizer.h"
#include "levin/optim/state_layout.h"

namespace levin::optim::detail {

inline constexpr size_t kMaxSlots = 4;
using Slots = std::array<Tensor, kMaxSlots>;

/// What an optimizer remembers of one parameter. It holds the parameter, so that its address stays its own.
struct ParamState {
  Tensor param;
  Tensor step;
  Slots slots;
  std::vector<int64_t> strides = {};  // of the parameter, where the state follows the order of its memory
};

/// What the lists rely on besides a parameter's device and dtype: set_data may change it under us.
struct Seen {
  int64_t numel;
  bool contiguous;
};

/// Parameters with gradients of one group, device, dtype and kind, as parallel lists: what one fused call takes.
struct Bucket {
  size_t group;
  int kind;
  bool plain;  // by a loop of ours (plain_kernels.h), not by torch's kernel
  bool mixed;  // gradients or state are of another dtype than the parameters: by a kernel of ours (fused_step/adam.h)
  c10::Device device;
  c10::ScalarType dtype;
  c10::ScalarType grad_dtype;
  std::vector<Tensor> params;
  std::vector<size_t> index;  // of each parameter in its group
  std::vector<Tensor> grads;  // filled for the length of a step, so that nobody is kept alive by them
  std::vector<Tensor> steps;
  std::array<std::vector<Tensor>, kMaxSlots> slots;
  std::vector<Seen> seen;
  std::vector<Tensor> copies;  // none, or one for each parameter: 16-bit, or undefined
};

/// A GradScale on the device of the bucket, in the form the fused kernels take.
using DeviceScale = kernels::StepScale;

/// The common machine of Levin's optimizers: groups, lists of tensors that are rebuilt only when the set of parameters
/// with gradients changes, state made when first needed, zero_grad, and Python's layout of the state dict.
class GroupedOptimizer : public OptimizerImpl {
 public:
  /// Of the slots below, so that what is said is what is made.
  std::optional<OptimizerTraits> traits() const final;
  void step() final;
  bool step_scaled(const GradScale& scale) final;
  bool step_params(std::span<const Tensor> params, const GradScale* scale = nullptr,
                   std::span<const Tensor> copies = {}) final;
  void zero_grad(bool set_to_none) final;
  size_t num_groups() const final { return groups_.size(); }
  std::vector<Tensor>& params(size_t group) final;
  bool set_slot_memory(std::function<Tensor(const Tensor& like)> make) final {
    slot_memory_ = std::move(make);
    return true;
  }
  std::string prepare_capture() final;
  uint64_t layout_version() const final { return layout_version_ + numbers_in_graph(); }
  StateDict state_dict() const override;
  bool check_state_dict(const StateDict& state) override;
  bool makes_room(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  explicit GroupedOptimizer(std::string name)
      : name_(std::move(name)), step_label_("Optimizer.step#" + name_ + ".step") {}

  /// Takes the lists of parameters, checked: leaves, no tensor in two groups, at least one; a repeat within one list is
  /// dropped.
  void set_groups(std::vector<std::vector<Tensor>> lists);
  /// One more list, checked in the same way. Nothing changes when it is refused.
  void append_group(std::vector<Tensor> list);

  /// One update of a bucket. Runs without gradient mode.
  virtual void update(Bucket&, const DeviceScale&) {}
  /// One update of all buckets: by default of one after the other. For an optimizer that must see all of them first.
  virtual void update_all(std::vector<Bucket>& buckets, const DeviceScale& scale);
  /// As in OptimizerTraits.
  virtual bool is_elementwise() const { return true; }
  virtual bool takes_tensor_sums() const { return false; }
  virtual int step_temporaries() const { return 0; }
  /// Whether `update` takes numbers that may change between the replays of a graph from refreshed_numbers().
  virtual bool is_capturable() const { return false; }
  /// Why that cannot be as parameters and options are now; empty: it can.
  virtual std::string capture_obstacle() const { return {}; }
  /// Other numbers may be part of the graph: this changes when one of them does.
  virtual uint64_t numbers_in_graph() const { return 0; }
  /// An obstacle for what aten's operators step: a number of the device would be rounded to 16 bits.
  std::string narrow_obstacle() const;
  /// Whether `update` understands a scale.
  virtual bool is_fused() const { return true; }
  /// Names of the state tensors besides "step", in the order of the slots.
  virtual std::span<const char* const> slot_names() const = 0;
  /// Whether the state has a step counter, and whether it stays on the host.
  virtual bool counts_steps() const { return true; }
  virtual bool steps_on_host() const { return false; }
  /// A number that changes whenever the slots or kinds of a group do.
  virtual int variant(size_t) const { return 0; }
  /// Which slots a parameter of this group needs now, as bits.
  virtual unsigned slots_needed(size_t group, const Tensor& param) const = 0;
  virtual Tensor make_slot(size_t group, size_t slot, const Tensor& param) const;
  virtual c10::ScalarType slot_dtype(size_t, size_t, const Tensor& param) const { return param.scalar_type(); }
  virtual std::vector<int64_t> slot_shape(size_t slot, const Tensor& param) const;
  /// Whether the slots are blocks of the parameter's memory, whatever their shape; else a slot of the parameter's shape
  /// is laid out as the parameter.
  virtual bool in_memory_order(const Tensor&) const { return false; }
  /// Parameters of different kinds go to different buckets.
  virtual int kind(size_t, const ParamState&) const { return 0; }
  /// Parameters that `update` shall treat by a plain loop go to buckets of their own, too.
  virtual bool is_plain(const Tensor&) const { return false; }
  /// Whether `update` takes a gradient of this narrower dtype as it is; else it is cast.
  virtual bool takes_grad(const Tensor&, c10::ScalarType) const { return false; }
  /// Whether `update` writes the copies of a bucket itself.
  virtual bool writes_copies() const { return false; }

  virtual void save_options(size_t group, StateDict& out) const = 0;
  virtual void load_options(size_t group, const StateDict& in) = 0;

  const std::vector<Tensor>& params_of(size_t group) const { return groups_[group].params; }

  /// Makes the next step build its lists again.
  void invalidate() {
    valid_ = false;
    ++layout_version_;
  }

  std::string name_;
  /// One per group; NaN until a scheduler sets it.
  std::deque<double> initial_lr_;

 private:
  struct Place {
    int bucket = -1;
    int at = 0;
  };
  struct Group {
    std::vector<Tensor> params;
    std::vector<Place> places;
    int variant = 0;
  };

  void run(const GradScale* scale);
  void run_buckets(std::vector<Bucket>& buckets, const GradScale* scale);
  bool refresh();
  void rebuild();
  Place add_to(std::vector<Bucket>& buckets, size_t group, size_t index);
  std::pair<size_t, size_t> find_param(const Tensor& param);
  void prepare(ParamState& state, size_t group, size_t index);
  Bucket& bucket_for(std::vector<Bucket>& buckets, size_t group, int kind, const Tensor& param,
                     c10::ScalarType grad_dtype);
  Tensor placed(const Tensor& slot) const;
  Tensor conforming_grad(size_t group, size_t index, const Tensor& param, const Tensor& grad) const;
  void release_grads();
  /// A saved state, taken apart; an Error where anything in it does not fit.
  SavedLayout checked(const StateDict& in);
  void check_param(size_t group, size_t index, const StateDict& in) const;
  void load_param(ParamState& state, size_t group, const StateDict& in);
  std::string describe(size_t group, size_t index) const;

  std::string step_label_;
  std::function<Tensor(const Tensor&)> slot_memory_;
  std::deque<Group> groups_;
  std::unordered_map<c10::TensorImpl*, ParamState> states_;
  std::vector<Bucket> buckets_;
  bool valid_ = false;
  uint64_t layout_version_ = 0;
  /// Group and position of each parameter; made when first asked for.
  std::unordered_map<c10::TensorImpl*, std::pair<size_t, size_t>> index_;
};

/// params -= updates * factors, with one factor (0-dim, double) a tensor. Overwrites `updates`.
void subtract_scaled(Bucket& bucket, std::vector<Tensor>& updates, const std::vector<Tensor>& factors);
/// Adds one to every step counter.
void advance(std::vector<Tensor>& steps);
/// Takes back what was added where `found_inf`, on the same device, is one.
void take_back(std::vector<Tensor>& steps, const std::optional<Tensor>& found_inf);

}  // namespace levin::optim::detail
