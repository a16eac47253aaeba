#include "levin/nn/checkpointing/checkpointing_frame.h"

#include <algorithm>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/kernels/recomputation.h"
#include "levin/nn/checkpointing/returns_last_layer.h"
#include "levin/nn/module_access.h"
#include "levin/nn/unit.h"

namespace levin::detail {
namespace {

/// What this thread is doing for which frame.
struct FrameMode {
  CheckpointFrame* frame;
  bool recomputes;
};
thread_local const FrameMode* frame_mode = nullptr;

class FrameModeScope {
 public:
  FrameModeScope(CheckpointFrame& frame, bool recomputes) : mode_{&frame, recomputes}, outer_(frame_mode) {
    frame_mode = &mode_;
  }
  ~FrameModeScope() { frame_mode = outer_; }
  FrameModeScope(const FrameModeScope&) = delete;
  FrameModeScope& operator=(const FrameModeScope&) = delete;

 private:
  FrameMode mode_;
  const FrameMode* outer_;
};

/// Ends a forward that runs again. No std::exception, so that nobody takes it for an error.
struct StopRecompute {
  const CheckpointFrame* frame;
};

const c10::StorageImpl* frame_storage(const Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool has_storage_of(const std::vector<const c10::StorageImpl*>& storages, const Tensor& tensor) {
  const auto* storage = frame_storage(tensor);
  return storage && std::find(storages.begin(), storages.end(), storage) != storages.end();
}

bool is_wanted_leaf(const at::TensorBase& tensor) {
  return tensor.requires_grad() && tensor.is_leaf();
}

std::vector<c10::Device> devices_of(const torch::nn::Module& module, const std::vector<Tensor>& inputs) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  const auto add = [&](const Tensor& tensor) {
    if (tensor.defined() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  };
  for (const auto& input : inputs) add(input);
  each_state(module, add);
  return devices;
}

/// Where the same tensor stands first: a forward may ask whether two arguments are one.
size_t first_same(const std::vector<Tensor>& tensors, size_t i) {
  size_t first = 0;
  while (!tensors[first].is_same(tensors[i])) ++first;
  return first;
}

/// The inputs as leaves of the same memory: running again must not hold the graph that made them.
std::vector<Tensor> as_leaves(const std::vector<Tensor>& inputs) {
  const c10::AutoGradMode no_grad(false);
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto first = first_same(inputs, i); first < i)
      leaves.push_back(leaves[first]);
    else if (inputs[i].is_leaf())
      leaves.push_back(inputs[i]);
    else
      leaves.push_back(inputs[i].detach().requires_grad_(inputs[i].requires_grad()));
  }
  return leaves;
}

/// The replay of a call with other inputs than its own.
std::function<void()> replay_with(Call& call, const std::vector<Tensor>& inputs, const std::vector<Tensor>& own) {
  const auto assign = [&](const std::vector<Tensor>& values) {
    size_t i = 0;
    call.each_input([&](Tensor& tensor) { tensor = values[i++]; });
  };
  assign(inputs);
  std::function<void()> replay;
  try {
    replay = call.replay();
  } catch (...) {
    assign(own);
    throw;
  }
  assign(own);
  return replay;
}

std::vector<Tensor> inputs_of(Call& call) {
  std::vector<Tensor> inputs;
  call.each_input([&](Tensor& tensor) { inputs.push_back(tensor); });
  return inputs;
}

}  // namespace

// ---- SavedVersion

SavedVersion::SavedVersion(const Tensor& tensor) {
  if (tensor.is_inference()) return;
  counter_ = torch::autograd::impl::version_counter(tensor);
  version_ = counter_.current_version();
}

bool SavedVersion::changed() const {
  return counter_.enabled() && counter_.current_version() != version_;
}

void SavedVersion::check(const char* operation, const std::string& unit) const {
  LEVIN_CHECK(!changed(), "[", operation, "] a tensor that ", unit,
              " needs in backward was changed in place after it was saved (version ", counter_.current_version(),
              ", saved at ", version_, ")");
}

// ---- LivingStorages

LivingStorages::LivingStorages(const torch::nn::Module& module, const std::vector<Tensor>& inputs,
                               const std::vector<Tensor>& activations) {
  each_state(module, [this](const Tensor& tensor) { state_.push_back(frame_storage(tensor)); });
  for (const auto& input : inputs) inputs_.push_back(frame_storage(input));
  for (const auto& activation : activations)
    if (activation.defined()) activations_.push_back(frame_storage(activation));
}

bool LivingStorages::is_state(const Tensor& tensor) const {
  if (!activations_.empty() && has_storage_of(activations_, tensor)) return false;
  return is_wanted_leaf(tensor) || has_storage_of(state_, tensor) ||
         (tensor.is_view() && is_wanted_leaf(tensor._base()));
}

bool LivingStorages::is_input(const Tensor& tensor) const {
  return has_storage_of(inputs_, tensor);
}

// ---- hooks

/// In the first forward: keeps what lives anyway, and the place of everything else.
struct CheckpointFrame::ForwardHooks final : SavedTensorHooks {
  ForwardHooks(std::shared_ptr<CheckpointFrame> owner, const LivingStorages& storages)
      : frame(std::move(owner)), living(&storages) {}
  ~ForwardHooks() override {
    if (releases) frame->release(*index);
  }

  void call_pack_hook(const Tensor& tensor) override {
    version = SavedVersion(tensor);
    if (auto* parent = frame->parent_)
      pack_nested(*parent, tensor);
    else if (living->is_input(tensor) || living->is_state(tensor))
      hold(tensor);
    else
      take_place(tensor);
    living = nullptr;
  }

  Tensor call_unpack_hook() override {
    version.check("checkpointing", frame->name());
    return index ? frame->take(*index) : held;
  }

  void hold(const Tensor& tensor) {
    held = tensor.is_leaf() ? tensor : tensor.detach();
    if (!frame->parent_) SavedTensorScope::note_kept(tensor);
  }
  void take_place(const Tensor& tensor) {
    index = frame->add(tensor);
    releases = true;
  }
  void pack_nested(CheckpointFrame& parent, const Tensor& tensor);

  std::shared_ptr<CheckpointFrame> frame;
  const LivingStorages* living;  // while forward runs
  std::optional<size_t> index;
  bool releases = false;
  Tensor held;
  SavedVersion version;
};

/// When forward runs again: fills the places. The graph is thrown away, unless forward itself runs a backward.
struct CheckpointFrame::RecomputeHooks final : SavedTensorHooks {
  RecomputeHooks(CheckpointFrame& owner, const LivingStorages& storages) : frame(&owner), living(&storages) {}
  void call_pack_hook(const Tensor& tensor) override {
    held = tensor.is_leaf() ? tensor : tensor.detach();
    if (!living->is_input(tensor) && !living->is_state(tensor)) frame->fill(held, nullptr, 0);
  }
  Tensor call_unpack_hook() override { return held; }

  CheckpointFrame* frame;
  const LivingStorages* living;
  Tensor held;
};

class CheckpointFrame::Forward final : public SavedTensors {
 public:
  Forward(CheckpointFrame& frame, const std::vector<Tensor>& inputs) : frame_(frame), living_(*frame.module_, inputs) {}
  std::unique_ptr<SavedTensorHooks> make() override {
    return std::make_unique<ForwardHooks>(frame_.shared_from_this(), living_);
  }

 private:
  CheckpointFrame& frame_;
  LivingStorages living_;
};

class CheckpointFrame::Recompute final : public SavedTensors, public kernels::Recomputation {
 public:
  explicit Recompute(CheckpointFrame& frame) : frame_(frame), living_(*frame.module_, frame.inputs_, frame.restored_) {}
  std::unique_ptr<SavedTensorHooks> make() override { return std::make_unique<RecomputeHooks>(frame_, living_); }
  bool has_all_with(std::span<const Tensor> saved) override {
    return SavedTensorScope::is_innermost(*this) && frame_.has_all_with(saved, living_);
  }
  const LivingStorages& living() const { return living_; }

 private:
  CheckpointFrame& frame_;
  LivingStorages living_;
};

void CheckpointFrame::Slot::clear() {
  tensor.reset();
  nested.reset();
}

/// The places belong to the parent, which runs again and saw every tensor of this unit as its own in its first forward.
void CheckpointFrame::ForwardHooks::pack_nested(CheckpointFrame& parent, const Tensor& tensor) {
  if (parent.recomputing_->living().is_input(tensor) || parent.recomputing_->living().is_state(tensor))
    return hold(tensor);
  if (living->is_input(tensor)) {
    hold(tensor);
    return parent.fill(held, nullptr, 0);
  }
  index = frame->add(tensor);
  frame->slots_[*index].live = parent.next_is_live();
  parent.fill(tensor, frame, *index);
}

// ---- CheckpointFrame

void CheckpointFrame::run(Call& call, std::shared_ptr<const CheckpointSettings> settings) {
  const auto* mode = frame_mode;
  if (!c10::GradMode::is_enabled() || (mode && !mode->recomputes)) return call.proceed();
  std::make_shared<CheckpointFrame>(call, std::move(settings), mode ? mode->frame : nullptr)->forward(call);
}

bool CheckpointFrame::active() {
  return frame_mode != nullptr;
}

void CheckpointFrame::restore_inputs(Call& call) {
  if (!frame_mode || !frame_mode->recomputes || frame_mode->frame->module_ != &call.module()) return;
  auto& restored = frame_mode->frame->restored_;
  size_t i = 0;
  call.each_input([&](Tensor& tensor) {
    if (i < restored.size() && restored[i].defined()) tensor = restored[i];
    ++i;
  });
}

CheckpointFrame::CheckpointFrame(Call& call, std::shared_ptr<const CheckpointSettings> settings,
                                 CheckpointFrame* parent)
    : settings_(std::move(settings)),
      name_(class_name(call.module())),
      module_(&call.module()),
      parent_(parent),
      state_({}) {
  const auto own = inputs_of(call);
  inputs_ = as_leaves(own);
  for (const auto& input : own) versions_.emplace_back(input);
  if (settings_->host && !parent_) move_to_host(own);
  replay_ = replay_with(call, inputs_, own);
  if (settings_->options.preserve_rng_state) state_.rng.emplace(devices_of(*module_, own));
  if (settings_->operators) results_.emplace(settings_->operators);
  if (parent_) return;
  for (size_t i = 0; i < own.size(); ++i)
    if (const auto* copy = on_host_.empty() ? nullptr : on_host_[on_host_[i].first].copy.get())
      SavedTensorScope::note_kept(copy->host());
    else
      SavedTensorScope::note_kept(own[i]);
}

/// Inputs that other units made. Leaves are held by somebody else anyway.
void CheckpointFrame::move_to_host(const std::vector<Tensor>& own) {
  const LivingStorages living(*module_, {});
  settings_->host->begin_group();
  for (size_t i = 0; i < own.size(); ++i) {
    auto& input = on_host_.emplace_back(HostInput{nullptr, first_same(own, i), own[i].requires_grad()});
    if (input.first == i && !own[i].is_leaf() && !living.is_state(own[i])) input.copy = settings_->host->put(own[i]);
    if (on_host_[input.first].copy) inputs_[i] = at::empty({0}, own[i].options());
  }
}

void CheckpointFrame::forward(Call& call) {
  Forward saved(*this, inputs_);
  struct Ended {
    CheckpointFrame& frame;
    ~Ended() { frame.parent_ = nullptr; }
  } const ended{*this};
  {
    const FrameModeScope mode(*this, false);
    const SavedTensorScope scope(saved);
    const KeptResultsScope kept(results_ ? &*results_ : nullptr, KeptResultsScope::Mode::kKeep, name_);
    call.proceed();
  }
  complete_ = true;
  ends_there_ = at::sequence_number::peek() == nodes_ && dynamic_cast<const nn::ReturnsLastLayer*>(module_);
  buffers_ = buffers_of(*module_);
  for (size_t i = 0; i < inputs_.size(); ++i)
    LEVIN_CHECK(!versions_[i].changed(), "[checkpointing] forward of ", name_, " changes input ", i,
                " in place, so it cannot run again; let it work on a copy");
}

size_t CheckpointFrame::add(const Tensor& tensor) {
  if (settings_->options.determinism_check)
    metas_.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
  nodes_ = at::sequence_number::peek();
  const std::lock_guard lock(mutex_);
  slots_.emplace_back();
  return slots_.size() - 1;
}

bool CheckpointFrame::returns_next() const {
  return ends_there_ && watched_results() == watched_before_;
}

bool CheckpointFrame::has_all_with(std::span<const Tensor> saved, const LivingStorages& living) {
  if (!settings_->options.early_stop || !complete_ || results_) return false;
  const auto takes_place = [&](const Tensor& tensor) {
    return tensor.defined() && !living.is_input(tensor) && !living.is_state(tensor);
  };
  const auto places = static_cast<size_t>(std::ranges::count_if(saved, takes_place));
  if (places == 0 || next_ + places != slots_.size()) return false;
  if (returns_next()) return true;
  const c10::AutoGradMode no_grad(false);
  for (const auto& tensor : saved)
    if (takes_place(tensor)) fill(tensor.is_leaf() ? tensor : tensor.detach(), nullptr, 0);
  return false;  // never: the last one has ended the forward
}

void CheckpointFrame::fill(const Tensor& tensor, std::shared_ptr<CheckpointFrame> nested, size_t nested_index) {
  const auto index = next_++;
  if (index >= slots_.size()) return;
  auto& slot = slots_[index];
  if (settings_->options.determinism_check) {
    const Meta now{tensor.sizes().vec(), tensor.scalar_type(), tensor.device()};
    const auto& first = metas_[index];
    LEVIN_CHECK(now == first, "[checkpointing] forward of ", name_, " does not do the same when it runs again: tensor ",
                index, " that it saves was ", first.dtype, " ", c10::IntArrayRef(first.sizes), " on ", first.device,
                " and is now ", now.dtype, " ", c10::IntArrayRef(now.sizes), " on ", now.device);
  }
  if (slot.live) {
    slot.tensor = nested ? Tensor() : tensor;
    slot.nested = std::move(nested);
    slot.nested_index = nested_index;
  }
  if (index + 1 == slots_.size() && (settings_->options.early_stop || !complete_) && !returns_next())
    throw StopRecompute{this};
}

void CheckpointFrame::recompute() {
  const ForwardStateScope state(state_);
  const UnchangedScope unchanged(buffers_);
  struct Restored {
    std::vector<Tensor>& tensors;
    ~Restored() { tensors.clear(); }
  } const at_the_end{restored_};
  for (size_t i = 0; i < on_host_.size(); ++i) {
    const auto& [copy, first, wants_grad] = on_host_[i];
    if (first < i)
      restored_.push_back(restored_[first]);
    else
      restored_.push_back(copy ? copy->get().detach().requires_grad_(wants_grad) : Tensor());
  }
  const c10::AutoGradMode with_grad(true);
  Recompute saved(*this);
  recomputing_ = &saved;
  next_ = 0;
  watched_before_ = watched_results();
  bool stopped = false;
  try {
    const FrameModeScope mode(*this, true);
    const SavedTensorScope scope(saved);
    const KeptResultsScope kept(results_ ? &*results_ : nullptr, KeptResultsScope::Mode::kReturn, name_);
    replay_();
  } catch (const StopRecompute& stop) {
    if (stop.frame != this) throw;
    stopped = true;
  } catch (...) {
    recomputing_ = nullptr;
    for (auto& slot : slots_) slot.clear();
    throw;
  }
  recomputing_ = nullptr;
  LEVIN_CHECK(stopped || (complete_ && next_ == slots_.size()) || !settings_->options.determinism_check,
              "[checkpointing] forward of ", name_, " does not do the same when it runs again: it saved ",
              slots_.size(), " tensors for backward and now ", next_);
}

Tensor CheckpointFrame::take(size_t index) {
  std::unique_lock lock(mutex_);
  if (!slots_[index].filled()) recompute();
  auto& slot = slots_[index];
  LEVIN_CHECK(slot.filled(), "[checkpointing] forward of ", name_,
              " does not do the same when it runs again: it saved ", slots_.size(), " tensors for backward and now ",
              next_);
  auto tensor = std::move(slot.tensor);
  auto nested = std::move(slot.nested);
  const auto nested_index = slot.nested_index;
  slot.clear();
  lock.unlock();
  return nested ? nested->take(nested_index) : tensor;
}

void CheckpointFrame::release(size_t index) noexcept {
  const std::lock_guard lock(mutex_);
  auto& slot = slots_[index];
  slot.live = false;
  if (slot.nested) slot.nested->release(slot.nested_index);
  slot.clear();
}

}  // namespace levin::detail
