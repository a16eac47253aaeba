#include "levin/strategies/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "levin/core/error.h"
#include "levin/strategies/memory_step.h"

namespace levin {
namespace detail {
namespace {

/// Walks over a trace and keeps account of what a layout has on the device.
class Account {
 public:
  Account(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked, const MemoryQuestion& question)
      : trace_(trace),
        layout_(layout),
        question_(question),
        rounding_(question.device == c10::kCUDA ? Rounding::kCuda : Rounding::kNone),
        widths_(state_widths(layout, asked)),
        shape_(optimizer_shape(question.optimizer)),
        has_master_(keeps_master(layout, asked)) {
    // One rank that computes with what it keeps has nothing to bring together.
    gathers_ = layout.parameters_on_host ||
               (layout.shards_parameters && (layout.ranks > 1 || widths_.kept != widths_.computed));
    reduces_ = layout.shards_gradients && (layout.ranks > 1 || layout.gradients_on_host || gathers_ || has_master_);
    count_state();
  }

  MemoryEstimate run() {
    size_t next = 0;
    for (size_t m = 0; m < trace_.marks.size(); ++m) {
      const auto& mark = trace_.marks[m];
      for (; next < mark.at; ++next) count(trace_.events[next], m > 0);
      if (m == 0) peak_ = 0, estimate_.temporary = 0;  // what was before the step
      pass(mark);
      note();
      add_point(mark);
    }
    estimate_.host += activations_on_host_;
    return std::move(estimate_);
  }

 private:
  int64_t rounded(int64_t bytes) const { return round_allocation(bytes, rounding_); }

  int64_t share_numel(const StepTrace::Param& param, bool divided) const {
    if (!divided || param.sizes.empty() || param.numel == 0) return param.numel;
    const auto rows = (param.sizes[0] + layout_.ranks - 1) / layout_.ranks;
    const auto part = rows * (param.numel / param.sizes[0]);
    return layout_.ranks > 1 ? (part + 63) / 64 * 64 : part;  // parts begin where vector loads like it
  }

  void count_state() {
    unit_full_.assign(trace_.units.size() + 1, 0);
    unit_numel_ = unit_grad_ = unit_full_;
    int64_t parameters = trace_.buffers, gradients = 0, optimizer = 0;
    for (const auto& param : trace_.params) {
      const auto unit = static_cast<size_t>(param.unit + 1);
      estimate_.num_parameters += param.numel;
      unit_full_[unit] += param.numel * widths_.computed;
      parameters += kept_bytes(share_numel(param, layout_.shards_parameters) * widths_.kept);
      if (!param.trained) continue;
      unit_numel_[unit] += param.numel;
      const auto gradient = kept_bytes(share_numel(param, layout_.shards_gradients) * widths_.gradient);
      gradients += gradient;
      unit_grad_[unit] += gradient;
      auto sizes = param.sizes;
      if (layout_.shards_optimizer && !sizes.empty()) sizes[0] = (sizes[0] + layout_.ranks - 1) / layout_.ranks;
      int64_t all = 1;
      for (const auto n : sizes) all *= n;
      const auto slots = static_cast<int64_t>(shape_.slots);
      optimizer += shape_.factored ? kept_bytes(optimizer_numel(shape_, sizes) * widths_.optimizer)
                                   : slots * kept_bytes(all * widths_.optimizer);
      if (has_master_) optimizer += kept_bytes(all * widths_.optimizer);
      if (shape_.counts_steps) optimizer += rounded(4);
      step_temporary_ += shape_.temporaries * all * widths_.optimizer;
    }
    if (layout_.gradients_replace_parameters) gradients = 0, unit_grad_.assign(unit_grad_.size(), 0);
    const auto put = [&](int64_t& place, int64_t bytes, bool on_host) { (on_host ? estimate_.host : place) += bytes; };
    put(estimate_.parameters, parameters - trace_.buffers, layout_.parameters_on_host);
    // Pages that are copied to the device are pinned, and in the dtype that is wanted there.
    if ((layout_.parameters_on_host && widths_.kept != widths_.computed) || (has_master_ && layout_.optimizer_on_host))
      for (const auto& param : trace_.params) estimate_.host += share_numel(param, true) * widths_.computed;
    estimate_.parameters += trace_.buffers;
    put(estimate_.gradients, gradients, layout_.gradients_on_host);
    put(estimate_.optimizer, optimizer, layout_.optimizer_on_host);
    if (layout_.gradients_on_host) unit_grad_.assign(unit_grad_.size(), 0);
    workspace_ = question_.workspace.value_or(question_.device == c10::kCUDA ? int64_t{64} << 20 : 0);
    // Gradients of passes before this one are there.
    if (reduces_ && question_.accumulate > 1)
      for (const auto bytes : unit_grad_) reduced_ += bytes;
  }
  /// Whole tensors are allocated one by one, parts of a unit together.
  int64_t kept_bytes(int64_t bytes) const { return layout_.ranks > 1 ? bytes : rounded(bytes); }

  void count(const MetaMeter::Event& event, bool in_step) {
    const auto& owner = trace_.owners[static_cast<size_t>(event.id)];
    switch (owner.kind) {
      case StepTrace::Kind::kParameter:
        return;  // as the layout has it
      case StepTrace::Kind::kGradient:
        if (layout_.gradient_buckets) {
          // Copied into its bucket when the next one comes.
          arriving_ = event.bytes > 0 ? event.bytes : 0;
        } else if (!reduces_ || in_step) {
          gradients_ += event.bytes;
          if (reduces_) unit_gradients_[owner.unit] += event.bytes, sending_ = 0;  // the reduction before has ended
        }
        break;
      case StepTrace::Kind::kInput:
        other_ += event.bytes;
        break;
      case StepTrace::Kind::kUnitInput:
        if (owner.saved && event.bytes > 0) unit_inputs_[owner.unit] += event.bytes;
        [[fallthrough]];
      default:
        (owner.saved ? saved_ : other_) += event.bytes;
    }
    note();
  }

  void pass(const StepTrace::Mark& mark) {
    const auto unit = static_cast<size_t>(mark.unit + 1);
    if (mark.part == StepPart::kBackward && mark.unit < 0 && mark.begins) estimate_.activations = saved_;
    if (mark.unit < 0 && mark.part == StepPart::kOptimizer) return begin_optimizer(mark.begins);
    if (mark.unit >= 0 && question_.offload_activations) move_inputs(mark);
    if (mark.unit < 0) {
      if (gathers_ && mark.part == StepPart::kForward) gathered_ += unit_full_[0];
      if (refreshes() && mark.part == StepPart::kForward) refresh(-1);
      return;
    }
    if (gathers_) mark.begins ? gather(mark) : release(mark);
    if (refreshes() && mark.part == StepPart::kForward) mark.begins ? refresh(mark.unit) : void(ahead_ = 0);
    if (reduces_ && mark.part == StepPart::kBackward && !mark.begins) reduce(mark.unit, unit);
  }

  /// What a checkpointed unit keeps waits on the host, from the end of its forward to its backward.
  void move_inputs(const StepTrace::Mark& mark) {
    auto& moved = on_host_[mark.unit];
    if (mark.part == StepPart::kForward && !mark.begins) {
      moved = unit_inputs_[mark.unit];
      saved_ -= moved;
      activations_on_host_ += moved;
    } else if (mark.part == StepPart::kBackward && mark.begins) {
      saved_ += std::exchange(moved, 0);
    }
  }

  /// Bytes of the units that are gathered ahead of one.
  int64_t ahead_of(int unit, int direction) const {
    int64_t bytes = 0;
    for (int i = 1; i <= layout_.prefetch; ++i) {
      const int next = unit + direction * i;
      if (next >= 0 && next < static_cast<int>(trace_.units.size())) bytes += unit_full_[static_cast<size_t>(next) + 1];
    }
    return bytes;
  }

  void gather(const StepTrace::Mark& mark) {
    const auto full = unit_full_[static_cast<size_t>(mark.unit + 1)];
    if (layout_.keeps_gathered && mark.part == StepPart::kBackward) return;
    // What arrives is copied to where it is used: for a moment it is there twice. In forward the next one is on its way
    // by then, in backward it sets out afterwards.
    const auto arrived = layout_.ranks > 1 ? full : 0;
    const bool is_forward = mark.part == StepPart::kForward;
    const auto next = ahead_of(mark.unit, is_forward ? 1 : -1);
    gathered_ += full;
    ahead_ = arrived + (is_forward ? next : 0);
    note();
    ahead_ = next;
  }

  /// Whole parameters that stay are renewed in the forward after a step, unit by unit.
  bool refreshes() const { return has_master_ && !layout_.shards_parameters && layout_.ranks > 1; }
  void refresh(int unit) {
    const auto next = unit < 0 ? 0 : ahead_of(unit, 1);
    ahead_ = unit_full_[static_cast<size_t>(unit + 1)] + next;
    note();
    ahead_ = next;
  }
  void release(const StepTrace::Mark& mark) {
    if (layout_.keeps_gathered && mark.part == StepPart::kForward) return;
    gathered_ -= unit_full_[static_cast<size_t>(mark.unit + 1)];
  }

  /// The gradients of a unit go into one buffer and leave it as this rank's part.
  void reduce(int unit, size_t at) {
    // Alone, a rank only casts them, or brings them to the host: they are there until that is done.
    const auto whole = layout_.ranks > 1 ? unit_numel_[at] * widths_.computed : unit_gradients_[unit];
    sending_ = layout_.ranks > 1 ? whole : 0;
    if (question_.accumulate <= 1) reduced_ += unit_grad_[at];
    note();
    gradients_ -= unit_gradients_[unit];
    unit_gradients_[unit] = 0;
    sending_ = whole;
  }

  void begin_optimizer(bool begins) {
    if (!begins) return;
    if (reduces_) {
      reduce(-1, 0);
      note();
      gradients_ = sending_ = 0;
    }
    arriving_ = ahead_ = gathered_ = 0;
    if (layout_.optimizer_on_host) return;
    other_ += step_temporary_;
    note();
    other_ -= step_temporary_;
  }

  int64_t temporary() const { return other_ + arriving_ + gathered_ + ahead_ + sending_ + workspace_; }
  int64_t now() const {
    const auto gradients = layout_.gradient_buckets ? estimate_.gradients : gradients_ + reduced_;
    return estimate_.parameters + estimate_.optimizer + gradients + saved_ + temporary();
  }
  void note() {
    if (now() > peak_) peak_ = now();
    estimate_.temporary = std::max(estimate_.temporary, temporary() + (reduces_ ? gradients_ : 0));
  }

  void add_point(const StepTrace::Mark& mark) {
    MemoryPoint point{.part = mark.part, .begins = mark.begins, .bytes = now(), .peak = peak_};
    if (mark.unit >= 0) point.unit = trace_.units[static_cast<size_t>(mark.unit)];
    // What came before a part began was in the part before.
    const bool closes = mark.unit < 0 && mark.begins && !estimate_.timeline.points.empty();
    const auto within = closes ? estimate_.timeline.points.back().part : mark.part;
    if (peak_ > estimate_.device_peak) estimate_.device_peak = peak_, estimate_.peak_part = within;
    estimate_.timeline.points.push_back(std::move(point));
    peak_ = now();
  }

  const StepTrace& trace_;
  const StateLayout& layout_;
  const MemoryQuestion& question_;
  Rounding rounding_;
  StateWidths widths_;
  const OptimizerShape& shape_;
  bool has_master_;
  bool gathers_ = false, reduces_ = false;
  MemoryEstimate estimate_;
  // By unit, the rest of the model first.
  std::vector<int64_t> unit_full_, unit_numel_, unit_grad_;
  std::map<int, int64_t> unit_gradients_, unit_inputs_, on_host_;
  int64_t activations_on_host_ = 0;
  int64_t saved_ = 0, other_ = 0, gradients_ = 0, reduced_ = 0, arriving_ = 0;
  int64_t gathered_ = 0, ahead_ = 0, sending_ = 0, workspace_ = 0, step_temporary_ = 0, peak_ = 0;
};

}  // namespace

MemoryEstimate lay_out(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked,
                       const MemoryQuestion& question) {
  return Account(trace, layout, asked, question).run();
}

}  // namespace detail

MemoryEstimate estimate_memory(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& question) {
  LEVIN_CHECK(question.accumulate >= 1, "[estimate_memory] accumulate ", question.accumulate,
              " is not allowed (1 or more)");
  LEVIN_CHECK(!question.offload_activations || question.checkpoint_blocks || question.checkpointing,
              "[estimate_memory] offload_activations moves what checkpointed units keep; choose units to checkpoint");
  const auto layout =
      question.layout ? *question.layout : state_layout(question.strategy, question.world_size, question.offload);
  const auto asked = resolve_precision(question.precision, question.device);
  detail::optimizer_shape(question.optimizer);
  auto plan = asked;
  if (asked.autocast && layout.casts_parameters) {
    plan.params = plan.inputs = asked.autocast;
    plan.autocast.reset();
  }
  const auto trace = detail::trace_step(make, batch, question, plan);
  return detail::lay_out(trace, layout, asked, question);
}

}  // namespace levin
