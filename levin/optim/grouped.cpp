#include "levin/optim/grouped.h"

#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/core/trace_span.h"
#include "levin/devices/graphs.h"
#include "levin/devices/host_memory.h"
#include "levin/optim/step/captured.h"
#include "levin/optim/zero_grad.h"

namespace levin::optim::detail {
namespace {

void move_to(std::optional<Tensor>& tensor, c10::Device device) {
  if (tensor && tensor->device() != device) tensor = tensor->to(device, /*non_blocking=*/true);
}

bool same_layout(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// Whether elements lie at the same places: strides of dimensions of size 1 mean nothing. Convolutions of 1 x 1 have
/// such gradients where images are channels-last.
bool same_places(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

}  // namespace

void GroupedOptimizer::set_groups(std::vector<std::vector<Tensor>> lists) {
  size_t count = 0;
  for (auto& list : lists) {
    count += list.size();
    append_group(std::move(list));
  }
  LEVIN_CHECK(count > 0, "[", name_, "] the parameter list is empty; give model->parameters() or groups with params");
}

void GroupedOptimizer::append_group(std::vector<Tensor> list) {
  std::unordered_map<c10::TensorImpl*, size_t> owner;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const auto& param : groups_[g].params) owner.emplace(param.unsafeGetTensorImpl(), g);
  const size_t mine = groups_.size();
  std::vector<Tensor> params;
  for (size_t i = 0; i < list.size(); ++i) {
    auto& param = list[i];
    LEVIN_CHECK(param.defined(), "[", name_, "] parameter ", i, " of group ", mine,
                " is undefined; give tensors that hold data");
    LEVIN_CHECK(param.is_leaf(), "[", name_, "] parameter ", i, " of group ", mine, " (shape ",
                fmt::format("{}", param.sizes()),
                ") is not a leaf: it was computed from other tensors; give those, or detach() it");
    const auto [at, is_new] = owner.emplace(param.unsafeGetTensorImpl(), mine);
    LEVIN_CHECK(is_new || at->second == mine, "[", name_, "] parameter ", i, " of group ", mine, " (shape ",
                fmt::format("{}", param.sizes()), ") is in group ", at->second,
                " too; a parameter belongs to one group");
    if (is_new) params.push_back(std::move(param));
  }
  groups_.emplace_back().params = std::move(params);
  initial_lr_.push_back(std::numeric_limits<double>::quiet_NaN());
  invalidate();
}

std::vector<Tensor>& GroupedOptimizer::params(size_t group) {
  LEVIN_CHECK(group < groups_.size(), "[", name_, ".params] group ", group, " is asked for, there are ",
              groups_.size());
  return groups_[group].params;
}

void GroupedOptimizer::step() {
  run(nullptr);
}

bool GroupedOptimizer::step_scaled(const GradScale& scale) {
  if (!is_fused()) return false;
  run(&scale);
  return true;
}

void GroupedOptimizer::zero_grad(bool set_to_none) {
  const TraceSpan span([&] { return "Optimizer.zero_grad#" + name_ + ".zero_grad"; });
  for (auto& group : groups_) levin::optim::zero_grad(group.params, set_to_none);
}

std::string GroupedOptimizer::prepare_capture() {
  if (!is_capturable()) return OptimizerImpl::prepare_capture();
  if (auto reason = capture_obstacle(); !reason.empty()) return reason;
  for (const auto& group : groups_)
    if (!group.params.empty()) {
      kernels::load_step_kernels(group.params.front().device());
      load_scalar_kernels(group.params.front().device());
    }
  return {};
}

std::string GroupedOptimizer::narrow_obstacle() const {
  for (const auto& group : groups_)
    for (const auto& param : group.params)
      if (at::isReducedFloatingType(param.scalar_type()))
        return name_ + " steps 16-bit parameters with numbers of the host, which a graph would repeat";
  return {};
}

void GroupedOptimizer::run(const GradScale* scale) {
  at::NoGradGuard no_grad;
  RECORD_FUNCTION(step_label_, c10::ArrayRef<const c10::IValue>{});
  struct Release {
    GroupedOptimizer* self;
    ~Release() { self->release_grads(); }
  } release{this};
  if (!refresh()) rebuild();
  run_buckets(buckets_, scale);
}

void GroupedOptimizer::run_buckets(std::vector<Bucket>& buckets, const GradScale* scale) {
  DeviceScale here;
  if (scale && scale->scale.defined()) here.scale = scale->scale;
  // A scaler may have summed over ranks or devices; the kernels compare with one.
  if (scale && scale->found_inf.defined()) here.found_inf = scale->found_inf.clamp_max(1);
  update_all(buckets, here);
  for (auto& bucket : buckets) {
    if (!bucket.copies.empty() && !writes_copies())
      for (size_t i = 0; i < bucket.params.size(); ++i)
        if (bucket.copies[i].defined()) bucket.copies[i].copy_(bucket.params[i]);
    // Neither torch's fused kernels nor plain loops tell autograd: a graph that saved the old values must refuse to go
    // backward.
    for (auto& param : bucket.params)
      if (!param.is_inference()) param.unsafeGetTensorImpl()->bump_version();
  }
}

void GroupedOptimizer::update_all(std::vector<Bucket>& buckets, const DeviceScale& scale) {
  auto here = scale;
  for (auto& bucket : buckets) {
    move_to(here.scale, bucket.device);
    move_to(here.found_inf, bucket.device);
    update(bucket, here);
  }
}

// Puts this step's gradients into the lists; false when the lists do not fit any more.
bool GroupedOptimizer::refresh() {
  if (!valid_) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    if (group.places.size() != group.params.size() || group.variant != variant(g)) return false;
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& param = group.params[i];
      const Tensor& grad = param.grad();
      const Place place = group.places[i];
      if (place.bucket < 0) {
        if (grad.defined() && param.numel() > 0) return false;
        continue;
      }
      if (!grad.defined()) return false;
      Bucket& bucket = buckets_[place.bucket];
      const Seen& seen = bucket.seen[place.at];
      if (!bucket.params[place.at].is_same(param) || param.scalar_type() != bucket.dtype ||
          param.device() != bucket.device || param.numel() != seen.numel || param.is_contiguous() != seen.contiguous)
        return false;
      Tensor& place_of_grad = bucket.grads[place.at];
      place_of_grad = conforming_grad(g, i, param, grad);
      if (place_of_grad.scalar_type() != bucket.grad_dtype) return false;
    }
  }
  return true;
}

void GroupedOptimizer::rebuild() {
  valid_ = false;
  buckets_.clear();
  std::unordered_set<c10::TensorImpl*> present;
  for (auto& group : groups_)
    for (auto& param : group.params) present.insert(param.unsafeGetTensorImpl());
  std::erase_if(states_, [&](const auto& item) { return !present.contains(item.first); });

  for (size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    group.variant = variant(g);
    group.places.assign(group.params.size(), {});
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& param = group.params[i];
      if (param.grad().defined() && param.numel() > 0) group.places[i] = add_to(buckets_, g, i);
    }
  }
  valid_ = true;
}

// Puts a parameter that has a gradient into the bucket it belongs to.
GroupedOptimizer::Place GroupedOptimizer::add_to(std::vector<Bucket>& buckets, size_t group, size_t index) {
  const Tensor& param = groups_[group].params[index];
  auto& state = states_[param.unsafeGetTensorImpl()];
  state.param = param;
  const int this_kind = kind(group, state);
  prepare(state, group, index);
  Tensor grad = conforming_grad(group, index, param, param.grad());

  Bucket& bucket = bucket_for(buckets, group, this_kind, param, grad.scalar_type());
  const Place place{static_cast<int>(&bucket - buckets.data()), static_cast<int>(bucket.params.size())};
  bucket.params.push_back(param);
  bucket.index.push_back(index);
  bucket.grads.push_back(std::move(grad));
  if (counts_steps()) bucket.steps.push_back(state.step);
  const unsigned needed = slots_needed(group, param);
  for (size_t s = 0; s < slot_names().size(); ++s)
    if (needed >> s & 1) bucket.slots[s].push_back(state.slots[s]);
  bucket.seen.push_back({param.numel(), param.is_contiguous()});
  return place;
}

bool GroupedOptimizer::step_params(std::span<const Tensor> params, const GradScale* scale,
                                   std::span<const Tensor> copies) {
  if (scale && !is_fused()) return false;
  LEVIN_CHECK(copies.empty() || copies.size() == params.size(), "[", name_, ".step_params] there are ", params.size(),
              " parameters and ", copies.size(), " copies");
  at::NoGradGuard no_grad;
  RECORD_FUNCTION(step_label_, c10::ArrayRef<const c10::IValue>{});
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto [group, index] = find_param(params[i]);
    if (!params[i].grad().defined() || params[i].numel() == 0) continue;
    const Place place = add_to(buckets, group, index);
    if (!copies.empty()) buckets[place.bucket].copies.push_back(copies[i]);
  }
  run_buckets(buckets, scale);
  return true;
}

std::pair<size_t, size_t> GroupedOptimizer::find_param(const Tensor& param) {
  for (const bool is_fresh : {false, true}) {
    const auto found = index_.find(param.unsafeGetTensorImpl());
    if (found != index_.end()) {
      const auto [group, index] = found->second;
      if (group < groups_.size() && index < groups_[group].params.size() && groups_[group].params[index].is_same(param))
        return found->second;
    }
    if (is_fresh) break;
    index_.clear();
    for (size_t g = 0; g < groups_.size(); ++g)
      for (size_t i = 0; i < groups_[g].params.size(); ++i) index_[groups_[g].params[i].unsafeGetTensorImpl()] = {g, i};
  }
  levin::detail::fail(levin::detail::concat("[", name_, ".step_params] a tensor of shape ", param.sizes(),
                                            " is none of the optimizer's parameters; give tensors of its params()"));
}

// Makes the state that is missing and lays out what is there as the parameter is now: set_data may have changed it.
void GroupedOptimizer::prepare(ParamState& state, size_t group, size_t index) {
  const Tensor& param = state.param;
  LEVIN_CHECK(param.is_floating_point() && param.layout() == at::kStrided && param.is_non_overlapping_and_dense(), "[",
              name_, ".step] ", describe(group, index), " must be a dense floating point tensor, it is ",
              param.toString(), " with strides ", fmt::format("{}", param.strides()), "; give a contiguous one");
  const auto step_device = steps_on_host() ? c10::Device(c10::kCPU) : param.device();
  // What is made in a capture is made again by each replay.
  const auto refuse = [&] {
    levin::detail::refuse_capture(levin::detail::concat(describe(group, index), " of ", name_, " has no state yet"));
  };
  if (counts_steps() && !state.step.defined()) refuse();
  if (counts_steps() && !state.step.defined())
    state.step = at::zeros({}, at::TensorOptions(step_device).dtype(at::kFloat));
  if (counts_steps()) state.step = state.step.to(step_device);

  const bool in_order = in_memory_order(param);
  if (in_order) {
    LEVIN_CHECK(state.strides.empty() || param.strides() == at::IntArrayRef(state.strides), "[", name_, ".step] ",
                describe(group, index), " had strides ", fmt::format("{}", state.strides), " and has ",
                fmt::format("{}", param.strides()), "; its memory format must stay as it was at the first step");
    state.strides = param.strides().vec();
  }
  const unsigned needed = slots_needed(group, param);
  for (size_t s = 0; s < slot_names().size(); ++s) {
    if (!(needed >> s & 1)) continue;
    Tensor& slot = state.slots[s];
    if (!slot.defined()) {
      refuse();
      slot = make_slot(group, s, param);
      if (auto place = placed(slot); !place.is_same(slot)) slot = place.copy_(slot);
    }
    const auto dtype = slot_dtype(group, s, param);
    const auto shape = slot_shape(s, param);
    LEVIN_CHECK(slot.sizes() == at::IntArrayRef(shape), "[", name_, ".step] ", describe(group, index), " has state \"",
                slot_names()[s], "\" of shape ", fmt::format("{}", slot.sizes()), " where ", fmt::format("{}", shape),
                " is needed; the parameter changed its shape after the first step");
    const bool follows = !in_order && slot.sizes() == param.sizes();
    const bool laid_out = !follows || same_layout(slot, param);
    if (slot.device() == param.device() && slot.scalar_type() == dtype && laid_out) continue;
    refuse();
    slot = follows ? at::empty_like(param, param.options().dtype(dtype)).copy_(slot)
                   : slot.to(param.options().dtype(dtype));
    invalidate();
  }
}

/// Where a new slot is to be; its values are not copied.
Tensor GroupedOptimizer::placed(const Tensor& slot) const {
  return slot_memory_ && slot.is_cpu() && slot.is_contiguous() && slot.numel() > 0 ? slot_memory_(slot) : slot;
}

Bucket& GroupedOptimizer::bucket_for(std::vector<Bucket>& buckets, size_t group, int this_kind, const Tensor& param,
                                     c10::ScalarType grad_dtype) {
  const bool mixed = grad_dtype != param.scalar_type() || slot_dtype(group, 0, param) != param.scalar_type();
  const bool plain = !mixed && is_plain(param);
  for (auto& bucket : buckets)
    if (bucket.group == group && bucket.kind == this_kind && bucket.plain == plain && bucket.mixed == mixed &&
        bucket.device == param.device() && bucket.dtype == param.scalar_type() && bucket.grad_dtype == grad_dtype)
      return bucket;
  return buckets.emplace_back(Bucket{.group = group,
                                     .kind = this_kind,
                                     .plain = plain,
                                     .mixed = mixed,
                                     .device = param.device(),
                                     .dtype = param.scalar_type(),
                                     .grad_dtype = grad_dtype});
}

Tensor GroupedOptimizer::conforming_grad(size_t group, size_t index, const Tensor& param, const Tensor& grad) const {
  if (grad.layout() == at::kStrided && grad.scalar_type() == param.scalar_type() && grad.device() == param.device() &&
      same_layout(grad, param)) [[likely]]
    return grad;
  LEVIN_CHECK(
      grad.layout() == at::kStrided, "[", name_, ".step] ", describe(group, index),
      " has a sparse gradient; only dense ones are supported (grad.to_dense(), or an embedding with sparse(false))");
  LEVIN_CHECK(kernels::takes_grad(param.scalar_type(), grad.scalar_type()) && grad.device() == param.device(), "[",
              name_, ".step] ", describe(group, index), " has a gradient of ", c10::toString(grad.scalar_type()),
              " on ", grad.device(), "; it must be of the parameter's dtype, ", c10::toString(param.scalar_type()),
              ", or a floating one as narrow, on the parameter's device, ", param.device());
  LEVIN_CHECK(grad.sizes() == param.sizes(), "[", name_, ".step] ", describe(group, index), " has a gradient of shape ",
              fmt::format("{}", grad.sizes()), "; it must have the parameter's");
  // The fused kernels walk memory in order, so all lists must be laid out alike.
  const bool as_it_is = grad.scalar_type() == param.scalar_type() || takes_grad(param, grad.scalar_type());
  if (as_it_is && same_layout(grad, param)) return grad;
  if (as_it_is && same_places(grad, param)) return grad.as_strided(param.sizes(), param.strides());
  return at::empty_like(param, param.options().dtype(as_it_is ? grad.scalar_type() : param.scalar_type())).copy_(grad);
}

void GroupedOptimizer::release_grads() {
  for (auto& bucket : buckets_)
    for (auto& grad : bucket.grads) grad.reset();
}

Tensor GroupedOptimizer::make_slot(size_t group, size_t slot, const Tensor& param) const {
  const auto shape = slot_shape(slot, param);
  const auto options = param.options().dtype(slot_dtype(group, slot, param));
  const bool follows = !in_memory_order(param) && param.sizes() == at::IntArrayRef(shape);
  return on_large_pages(follows ? at::empty_like(param, options) : at::empty(shape, options)).zero_();
}

std::vector<int64_t> GroupedOptimizer::slot_shape(size_t, const Tensor& param) const {
  return param.sizes().vec();
}

std::string GroupedOptimizer::describe(size_t group, size_t index) const {
  return fmt::format("parameter {} of group {} (shape {})", index, group, groups_[group].params[index].sizes());
}

void subtract_scaled(Bucket& bucket, std::vector<Tensor>& updates, const std::vector<Tensor>& factors) {
  if (bucket.dtype == at::kFloat || bucket.dtype == at::kDouble) {
    at::_foreach_mul_(updates, factors);
    at::_foreach_sub_(bucket.params, updates);
    return;
  }
  // With 8 or 11 bits, rounding the factor and the product too would eat the update.
  for (size_t i = 0; i < updates.size(); ++i) {
    const auto moved =
        bucket.params[i].to(at::kFloat).addcmul_(updates[i].to(at::kFloat), factors[i].to(at::kFloat), -1);
    bucket.params[i].copy_(moved);
  }
}

void advance(std::vector<Tensor>& steps) {
  if (steps.empty()) return;
  if (!steps[0].is_cpu()) return at::_foreach_add_(steps, 1);
  // One tensor op a counter would cost more than the update of a small parameter.
  for (auto& step : steps) *step.mutable_data_ptr<float>() += 1;
}

void take_back(std::vector<Tensor>& steps, const std::optional<Tensor>& found_inf) {
  if (steps.empty() || !found_inf) return;
  if (!steps[0].is_cpu()) return at::_foreach_sub_(steps, std::vector<Tensor>(steps.size(), found_inf->reshape({})));
  const float back = *found_inf->const_data_ptr<float>();
  for (auto& step : steps) *step.mutable_data_ptr<float>() -= back;
}

}  // namespace levin::optim::detail
