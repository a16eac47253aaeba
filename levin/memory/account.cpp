#include "levin/memory/account.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "levin/core/error.h"
#include "levin/memory/optimizers.h"
#include "levin/memory/simulation.h"
#include "levin/memory/widths.h"
#include "levin/strategies/sharding/group_memory.h"

namespace levin::detail {
namespace {

/// What cuBLAS holds on Hopper, for each thread that has called it.
int64_t workspaces_of(const StepTrace& trace) {
  constexpr int64_t kWorkspace = int64_t{32} << 20;
  return kWorkspace * (trace.torch_products_in_forward + trace.torch_products_in_backward);
}

/// Walks over a trace and keeps account of what a layout has on the device.
class Account {
 public:
  Account(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked, const MemoryQuestion& question)
      : trace_(trace),
        layout_(layout),
        question_(question),
        traits_(question.optimizer_traits ? *question.optimizer_traits
                                          : optimizer_traits(question.optimizer, question.moments_dtype)),
        figures_(figures_of(asked)),
        optimizer_width_(state_widths(layout, asked).optimizer),
        sharded_(is_sharded(layout, asked)) {
    workspace_ = question_.workspace.value_or(question_.device == c10::kCUDA ? workspaces_of(trace_) : 0);
    estimate_.parameters = trace_.buffers;
    count_optimizer();
    if (!sharded_) {
      count_full();
      return;
    }
    const auto plan = group_parameters();
    count_shards();
    simulation_.emplace(layout_, figures_, plan, groups_, trace_.marks, question_.accumulate, saved_by_forward(),
                        [this] { note(); });
  }

  MemoryEstimate run() {
    size_t next = 0;
    for (size_t m = 0; m < trace_.marks.size(); ++m) {
      const auto& mark = trace_.marks[m];
      for (; next < mark.at; ++next) count(trace_.events[next]);
      if (m == 0) peak_ = 0, estimate_.temporary = estimate_.total_peak = 0;  // what was before the step
      if (mark.recomputed) {
        if (sharded_) simulation_->follow(mark);
        continue;
      }
      // A forward is seen before anything is done for it, everything else when it has been done.
      const bool before = mark.part == StepPart::kForward && mark.begins;
      if (before) add_point(mark);
      pass(mark);
      note();
      if (!before) add_point(mark);
    }
    estimate_.host += activations_on_host_ + (simulation_ ? simulation_->host_rooms() : 0);
    return std::move(estimate_);
  }

 private:
  GroupFigures figures_of(const PrecisionPlan& asked) const {
    auto figures = group_figures(layout_, asked, question_.device);
    const bool one_dtype = figures.kept == figures.computed && figures.kept == figures.gradient;
    figures.updates_in_place = layout_.updates_in_place && figures.ranks * figures.replicas == 1 && one_dtype &&
                               traits_.elementwise && optimizer_tensors(traits_, {1}, figures.kept).empty();
    return figures;
  }

  int64_t rounded(int64_t bytes) const { return round_allocation(bytes, figures_.rounding); }
  /// Of shards, which host memory holds as they are.
  int64_t rounded_on_device(int64_t bytes) const { return figures_.offload ? bytes : rounded(bytes); }
  void put(int64_t& place, int64_t bytes, bool on_host, bool on_disk = false) {
    if (!on_disk) (on_host ? estimate_.host : place) += bytes;
  }

  /// As rank 0 has it: of rows that do not divide evenly, others have fewer.
  std::vector<int64_t> shard_of(const StepTrace::Param& param) const {
    auto shard = param.sizes;
    const int ranks = param.expert_ranks > 0 ? param.expert_ranks : layout_.ranks;
    if (sharded_ && !shard.empty()) shard[0] = (shard[0] + ranks - 1) / ranks;
    return shard;
  }
  /// No other rank has it to average its gradient with.
  bool bucketed(const StepTrace::Param& param) const { return layout_.gradient_buckets && param.expert_ranks != 1; }

  // ---- what is there all through the step

  void count_optimizer() {
    estimate_.num_parameters = trace_.num_parameters;
    for (const auto& param : trace_.params) {
      if (!param.trained) continue;
      const auto shard = shard_of(param);
      for (const auto bytes : optimizer_tensors(traits_, shard, optimizer_width_))
        put(estimate_.optimizer, layout_.optimizer_on_host ? bytes : rounded(bytes), layout_.optimizer_on_host,
            layout_.optimizer_on_disk);
      step_temporary_ += traits_.temporaries * c10::multiply_integers(shard) * optimizer_width_;
    }
  }

  int64_t full_gradient(const StepTrace::Param& param) const {
    return param.trained ? rounded(param.numel * (layout_.casts_parameters ? figures_.computed : figures_.kept)) : 0;
  }

  /// Full gradients of micro-batches are added, and reduced in the last one.
  bool sums_full() const {
    const bool staged = layout_.pipeline && layout_.pipeline->ranks > 1;
    return (question_.accumulate > 1 || staged) && figures_.ranks * figures_.replicas > 1;
  }
  int64_t accumulated_gradient(const StepTrace::Param& param) const {
    return rounded(param.numel * figures_.accumulated);
  }

  /// Parameters and gradients that every rank has in full.
  void count_full() {
    for (const auto& param : trace_.params) {
      estimate_.parameters += rounded(param.numel * figures_.kept);
      estimate_.gradients += full_gradient(param);
      if (bucketed(param)) buckets_ += full_gradient(param);
    }
  }

  /// Of the experts that are spread over ranks, or of all other parameters; numbered as in the trace.
  GroupPlan plan_of(bool experts) const {
    std::vector<GroupedParam> params;
    std::vector<size_t> numbers;
    for (size_t i = 0; i < trace_.params.size(); ++i) {
      const auto& param = trace_.params[i];
      if ((param.expert_ranks > 0) != experts) continue;
      params.push_back({.sizes = param.sizes, .unit = static_cast<size_t>(param.unit)});
      numbers.push_back(i);
    }
    auto plan = layout_.plan_groups(params, trace_.units.size());
    for (auto& group : plan.groups)
      for (auto& index : group.params) index = numbers[index];
    return plan;
  }

  /// Which parameters are gathered together, and by which units.
  GroupPlan group_parameters() {
    auto plan = plan_of(/*experts=*/false);
    if (std::ranges::any_of(trace_.params, [](const auto& param) { return param.expert_ranks > 0; })) {
      const auto experts = plan_of(/*experts=*/true);
      for (size_t unit = 0; unit < plan.needs.size(); ++unit)
        for (const auto group : experts.needs[unit]) plan.needs[unit].push_back(plan.groups.size() + group);
      plan.groups.insert(plan.groups.end(), experts.groups.begin(), experts.groups.end());
    }
    group_of_.resize(trace_.params.size());
    for (const auto& group : plan.groups) {
      auto& sizes = groups_.emplace_back();
      for (const auto index : group.params) {
        group_of_[index] = groups_.size() - 1;
        const auto& param = trace_.params[index];
        sizes.ranks = param.expert_ranks;
        const auto shard = aligned_part(c10::multiply_integers(shard_of(param)));
        sizes.shard += shard;
        sizes.full += aligned_part(param.numel);
        if (param.trained) sizes.grad += shard;
      }
    }
    return plan;
  }

  void count_shards() {
    for (const auto& group : groups_) {
      const auto shard = rounded_on_device(group.shard * figures_.kept);
      if (figures_.keeps_full) estimate_.parameters += rounded(group.full * figures_.computed);
      put(figures_.keeps_full ? estimate_.optimizer : estimate_.parameters, shard, figures_.offload,
          layout_.parameters_on_disk);
      // Pages that are copied to the device are pinned, and in the dtype of the computation.
      if (figures_.offload && figures_.kept != figures_.computed) estimate_.host += group.shard * figures_.computed;
    }
    if (figures_.offload && !figures_.keeps_full && !layout_.parameters_on_host)  // as they are gathered
      for (const auto& group : groups_) estimate_.parameters += rounded(group.shard * figures_.computed);
    host_state_ = estimate_.host;
    // Pinned memory of gradients is kept, also where they are used up at once.
    if (figures_.updates_in_place) return;
    if (!layout_.optimizer_in_backward || (figures_.offload && question_.device == c10::kCUDA))
      for (const auto& group : groups_)
        put(estimate_.gradients, rounded_on_device(group.grad * figures_.gradient), figures_.offload);
    if (!layout_.reduces_at_end || figures_.offload) return;
    estimate_.gradients = 0;
    for (const auto& param : trace_.params)
      estimate_.gradients += sums_full() && param.trained ? accumulated_gradient(param) : full_gradient(param);
  }

  // ---- what is allocated and freed

  /// On the device, when the first backward begins.
  int64_t saved_by_forward() const {
    const auto backward = std::ranges::find_if(trace_.marks, [](const auto& mark) {
      return mark.unit < 0 && mark.part == StepPart::kBackward && mark.begins;
    });
    const auto end = backward == trace_.marks.end() ? 0 : backward->at;
    int64_t saved = 0;
    for (size_t i = 0; i < end; ++i) {
      const auto& owner = trace_.owners[static_cast<size_t>(trace_.events[i].id)];
      const bool here = owner.kind == StepTrace::Kind::kOther ||
                        (owner.kind == StepTrace::Kind::kUnitInput && !question_.offload_activations);
      if (owner.saved && here) saved += trace_.events[i].bytes;
    }
    return saved;
  }

  void count(const MetaMeter::Event& event) {
    const auto& owner = trace_.owners[static_cast<size_t>(event.id)];
    switch (owner.kind) {
      case StepTrace::Kind::kParameter:
        return;  // as the layout has it
      case StepTrace::Kind::kGradient:
        count_gradient(owner, event.bytes);
        break;
      case StepTrace::Kind::kInput:
        other_ += event.bytes;
        break;
      case StepTrace::Kind::kUnitInput:
        if (owner.saved && event.bytes > 0) unit_inputs_[owner.of] += event.bytes;
        [[fallthrough]];
      case StepTrace::Kind::kOther:
        (owner.saved ? saved_ : other_) += event.bytes;
    }
    note();
  }

  void count_gradient(const StepTrace::Owner& owner, int64_t bytes) {
    const auto param = static_cast<size_t>(owner.of);
    if (sharded_ && bytes < 0) return;  // when it was reduced
    if (sharded_)
      simulation_->add_gradient(group_of_[param], sums_full() ? accumulated_gradient(trace_.params[param]) : bytes);
    else if (bucketed(trace_.params[param]))
      arriving_ = bytes > 0 ? bytes : 0;  // copied into its bucket when the next one comes
    else if (layout_.optimizer_in_backward && question_.accumulate == 1)
      gradients_ = bytes;  // used when the next one comes
    else
      gradients_ += bytes;
  }

  void pass(const StepTrace::Mark& mark) {
    if (mark.unit >= 0 && question_.offload_activations) move_inputs(mark);
    if (mark.unit < 0 && mark.part == StepPart::kBackward && mark.begins)
      estimate_.activations = std::max(estimate_.activations, saved_);
    if (sharded_) simulation_->follow(mark);
    if (mark.part == StepPart::kOptimizer && mark.begins) begin_optimizer();
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

  void begin_optimizer() {
    arriving_ = 0;
    if (layout_.optimizer_on_host || layout_.optimizer_in_backward) return;
    other_ += step_temporary_;
    note();
    other_ -= step_temporary_;
  }

  // ---- sums

  int64_t temporary() const { return other_ + arriving_ + (simulation_ ? simulation_->parameters() : 0) + workspace_; }
  int64_t gradients() const { return simulation_ ? simulation_->gradients() : buckets_ + gradients_; }
  int64_t now() const { return estimate_.parameters + estimate_.optimizer + gradients() + saved_ + temporary(); }
  /// In host memory at this moment.
  int64_t on_host() const {
    int64_t bytes = host_state_ + (simulation_ ? simulation_->host_gradients() : 0);
    for (const auto& [unit, moved] : on_host_) bytes += moved;
    return bytes;
  }
  void note() {
    peak_ = std::max(peak_, now());
    estimate_.total_peak = std::max(estimate_.total_peak, now() + on_host());
    const auto full = simulation_ && !layout_.reduces_at_end ? simulation_->full_gradients() : 0;
    estimate_.temporary = std::max(estimate_.temporary, temporary() + full);
  }

  void add_point(const StepTrace::Mark& mark) {
    MemoryPoint point{.part = mark.part, .begins = mark.begins, .bytes = now(), .peak = std::max(peak_, now())};
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
  const OptimizerTraits traits_;
  const GroupFigures figures_;
  const int64_t optimizer_width_;
  const bool sharded_;
  MemoryEstimate estimate_;
  std::vector<GroupSizes> groups_;
  std::vector<size_t> group_of_;  // of parameters
  std::optional<ShardingSimulation> simulation_;
  std::map<int, int64_t> unit_inputs_, on_host_;
  int64_t activations_on_host_ = 0, host_state_ = 0;
  int64_t saved_ = 0, other_ = 0, gradients_ = 0, buckets_ = 0, arriving_ = 0;
  int64_t workspace_ = 0, step_temporary_ = 0, peak_ = 0;
};

}  // namespace

MemoryEstimate account_for(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked,
                           const MemoryQuestion& question) {
  LEVIN_CHECK(layout.not_estimated.empty(), "[memory] ", layout.not_estimated);
  return Account(trace, layout, asked, question).run();
}

}  // namespace levin::detail
