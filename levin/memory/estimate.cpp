#include "levin/memory/estimate.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "levin/core/error.h"
#include "levin/memory/step.h"
#include "levin/strategies/gemini/chunk_plan.h"
#include "levin/strategies/sharding/group_memory.h"

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
        rules_(group_rules(layout, asked, question.device)),
        traits_(question.optimizer_traits ? *question.optimizer_traits
                                          : optimizer_traits(question.optimizer, question.moments_dtype)),
        optimizer_width_(state_widths(layout, asked).optimizer),
        divided_(is_divided(layout, asked)) {
    workspace_ = question_.workspace.value_or(question_.device == c10::kCUDA ? int64_t{64} << 20 : 0);
    count_state();
    if (divided_) {
      std::vector<int> order;
      for (const auto& mark : trace_.marks)
        if (mark.part == StepPart::kForward && mark.begins && mark.unit >= 0) order.push_back(mark.unit);
      // Batches that only accumulate change no parameter.
      rules_.renews = question_.accumulate == 1 || rules_.ranks * rules_.replicas == 1;
      play_.emplace(rules_, groups_, needs_, order, [this] { note(); });
      if (question_.accumulate > 1 && rules_.ranks * rules_.replicas == 1) play_->begin_with_gradients();
    }
  }

  MemoryEstimate run() {
    size_t next = 0;
    for (size_t m = 0; m < trace_.marks.size(); ++m) {
      const auto& mark = trace_.marks[m];
      for (; next < mark.at; ++next) count(trace_.events[next]);
      if (m == 0) peak_ = 0, estimate_.temporary = estimate_.total_peak = 0;  // what was before the step
      // A forward is seen before anything is done for it, everything else when it has been done.
      const bool before = mark.part == StepPart::kForward && mark.begins;
      if (before) add_point(mark);
      pass(mark);
      note();
      if (!before) add_point(mark);
    }
    estimate_.host += activations_on_host_;
    return std::move(estimate_);
  }

 private:
  int64_t rounded(int64_t bytes) const { return round_allocation(bytes, rules_.rounding); }
  /// Of parts, which host memory holds as they are.
  int64_t rounded_on_device(int64_t bytes) const { return rules_.offload ? bytes : rounded(bytes); }

  /// As rank 0 has it: of rows that do not divide evenly, others have fewer.
  std::vector<int64_t> part_of(const std::vector<int64_t>& sizes) const {
    auto part = sizes;
    if (!part.empty()) part[0] = (part[0] + layout_.ranks - 1) / layout_.ranks;
    return part;
  }
  static int64_t product_of(const std::vector<int64_t>& sizes) {
    int64_t all = 1;
    for (const auto n : sizes) all *= n;
    return all;
  }

  /// Which parameters are gathered together, and by which units.
  void group_parameters() {
    const auto root = trace_.units.size();
    if (layout_.chunks && divided_) {
      group_of_ = chunks_of();
    } else {
      for (const auto& param : trace_.params)
        group_of_.push_back(param.numel < layout_.persistence_threshold ? static_cast<int>(root) : param.unit);
      groups_.resize(root + 1);
    }
    needs_.resize(root + 1);
    for (size_t i = 0; i < trace_.params.size(); ++i) {
      // What stays whole is the root's.
      const auto unit =
          layout_.chunks && divided_ ? static_cast<size_t>(trace_.params[i].unit) : static_cast<size_t>(group_of_[i]);
      auto& needs = needs_[unit];
      if (std::find(needs.begin(), needs.end(), group_of_[i]) == needs.end()) needs.push_back(group_of_[i]);
    }
  }

  /// As Gemini places parameters: the root's first, in chunks of their own.
  std::vector<int> chunks_of() {
    const auto root = static_cast<int>(trace_.units.size());
    std::vector<size_t> order(trace_.params.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_partition(order.begin(), order.end(), [&](size_t i) { return trace_.params[i].unit == root; });
    std::vector<ChunkParam> params;
    for (const auto i : order)
      params.push_back({.sizes = trace_.params[i].sizes, .section = trace_.params[i].unit == root ? 0 : 1});
    auto elements = layout_.chunks->elements;
    if (elements == 0) {
      const auto found = search_chunk_size(params, {.range = layout_.chunks->range,
                                                    .min_chunk = layout_.chunks->least,
                                                    .interval = layout_.chunks->step,
                                                    .ranks = layout_.ranks});
      elements = found.elements;
      rules_.keeps_to_end = found.keep_gathered;
    }
    rules_.keeps_for_next = true;
    const auto plan = plan_chunks(params, elements, layout_.ranks);
    groups_.resize(plan.chunks.size());
    std::vector<int> groups(order.size());
    for (size_t i = 0; i < order.size(); ++i) groups[order[i]] = plan.chunk_of[i];
    return groups;
  }

  void count_state() {
    group_parameters();
    int64_t whole = 0, gradients = 0, slots = 0;
    for (size_t i = 0; i < trace_.params.size(); ++i) {
      const auto& param = trace_.params[i];
      estimate_.num_parameters += param.numel;
      const auto part = divided_ ? part_of(param.sizes) : param.sizes;
      const auto numel = product_of(part);
      auto& group = groups_[static_cast<size_t>(group_of_[i])];
      group.shard += aligned_part(numel);
      group.full += aligned_part(param.numel);
      whole += rounded(param.numel * rules_.kept);
      if (!param.trained) continue;
      group.grad += aligned_part(numel);
      gradients += rounded(param.numel * (layout_.casts_parameters ? rules_.computed : rules_.kept));
      for (const auto bytes : optimizer_tensors(traits_, part, optimizer_width_))
        slots += layout_.optimizer_on_host ? bytes : rounded(bytes);
      step_temporary_ += traits_.temporaries * numel * optimizer_width_;
    }
    const auto put = [&](int64_t& place, int64_t bytes, bool on_host, bool on_disk = false) {
      if (!on_disk) (on_host ? estimate_.host : place) += bytes;
    };
    put(estimate_.optimizer, slots, layout_.optimizer_on_host, layout_.optimizer_on_disk);
    estimate_.parameters = trace_.buffers;
    if (!divided_) {
      estimate_.parameters += whole;
      estimate_.gradients = gradients;
      return;
    }
    for (const auto& group : groups_) {
      const auto shard = rounded_on_device(group.shard * rules_.kept);
      if (rules_.keeps_whole) {
        estimate_.parameters += rounded(group.full * rules_.computed);
        put(estimate_.optimizer, shard, rules_.offload, layout_.parameters_on_disk);
      } else {
        put(estimate_.parameters, shard, rules_.offload, layout_.parameters_on_disk);
      }
      // Pages that are copied to the device are pinned, and in the dtype that is wanted there.
      if (rules_.offload && rules_.kept != rules_.computed) estimate_.host += group.shard * rules_.computed;
    }
    host_state_ = estimate_.host;
    // Page-locked memory of gradients is kept, also where they are used up at once.
    if (!layout_.optimizer_in_backward || (rules_.offload && question_.device == c10::kCUDA))
      for (const auto& group : groups_)
        put(estimate_.gradients, rounded_on_device(group.grad * rules_.gradient), rules_.offload);
    if (layout_.reduces_at_end && !rules_.offload) estimate_.gradients = gradients;
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
      default:
        (owner.saved ? saved_ : other_) += event.bytes;
    }
    note();
  }

  void count_gradient(const StepTrace::Owner& owner, int64_t bytes) {
    if (divided_)
      play_->add_gradient(group_of_[static_cast<size_t>(owner.of)], bytes);
    else if (layout_.gradient_buckets)
      arriving_ = bytes > 0 ? bytes : 0;  // copied into its bucket when the next one comes
    else if (layout_.optimizer_in_backward && question_.accumulate == 1)
      gradients_ = bytes;  // used when the next one comes
    else
      gradients_ += bytes;
  }

  void pass(const StepTrace::Mark& mark) {
    if (mark.unit >= 0 && question_.offload_activations) move_inputs(mark);
    if (mark.part == StepPart::kOptimizer) return mark.begins ? begin_optimizer() : void();
    const bool forward = mark.part == StepPart::kForward;
    if (mark.unit < 0 && !forward) estimate_.activations = saved_;
    if (!divided_) return;
    if (mark.unit < 0)
      forward ? play_->begin_forward() : play_->begin_backward();
    else if (forward)
      mark.begins ? play_->enter_forward(mark.unit) : play_->leave_forward(mark.unit);
    else
      mark.begins ? play_->enter_backward(mark.unit) : play_->leave_backward(mark.unit);
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
    if (divided_) play_->end_backward();
    arriving_ = 0;
    if (layout_.optimizer_on_host || layout_.optimizer_in_backward) return;
    other_ += step_temporary_;
    note();
    other_ -= step_temporary_;
  }

  int64_t temporary() const { return other_ + arriving_ + (divided_ && play_ ? play_->parameters() : 0) + workspace_; }
  int64_t now() const {
    const auto gradients = layout_.gradient_buckets ? estimate_.gradients
                           : divided_               ? play_ ? play_->gradients() : 0
                                                    : gradients_;
    return estimate_.parameters + estimate_.optimizer + gradients + saved_ + temporary();
  }
  /// In host memory at this moment.
  int64_t on_host() const {
    int64_t bytes = host_state_ + (play_ ? play_->host_gradients() : 0);
    for (const auto& [unit, moved] : on_host_) bytes += moved;
    return bytes;
  }
  void note() {
    if (now() > peak_) peak_ = now();
    estimate_.total_peak = std::max(estimate_.total_peak, now() + on_host());
    const auto whole = divided_ && play_ && !layout_.reduces_at_end ? play_->whole_gradients() : 0;
    estimate_.temporary = std::max(estimate_.temporary, temporary() + whole);
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
  GroupRules rules_;
  OptimizerTraits traits_;
  int64_t optimizer_width_;
  bool divided_;
  MemoryEstimate estimate_;
  std::vector<GroupSizes> groups_;
  std::vector<int> group_of_;            // of parameters
  std::vector<std::vector<int>> needs_;  // of units, the rest of the model last
  std::optional<GroupPlay> play_;
  std::map<int, int64_t> unit_inputs_, on_host_;
  int64_t activations_on_host_ = 0, host_state_ = 0;
  int64_t saved_ = 0, other_ = 0, gradients_ = 0, arriving_ = 0;
  int64_t workspace_ = 0, step_temporary_ = 0, peak_ = 0;
};

}  // namespace

MemoryEstimate lay_out(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked,
                       const MemoryQuestion& question) {
  return Account(trace, layout, asked, question).run();
}

}  // namespace detail

MemoryEstimate estimate_memory(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& asked_for) {
  auto question = asked_for;
  LEVIN_CHECK(question.accumulate >= 1, "[estimate_memory] accumulate ", question.accumulate,
              " is not allowed (1 or more)");
  const auto layout =
      question.layout ? *question.layout : state_layout(question.strategy, question.world_size, question.offload);
  if (!question.units) question.units = layout.units;
  if (!question.checkpointing && !question.checkpoint_blocks) question.checkpointing = layout.checkpointing;
  question.offload_activations = question.offload_activations || layout.offload_activations;
  LEVIN_CHECK(!question.offload_activations || question.checkpoint_blocks || question.checkpointing,
              "[estimate_memory] offload_activations moves what checkpointed units keep; choose units to checkpoint");
  LEVIN_CHECK(question.accumulate == 1 || !layout.optimizer_in_backward,
              "[estimate_memory] optimizer_in_backward uses gradients as they come and cannot accumulate them; set "
              "accumulate 1");
  if (!question.optimizer_traits)
    question.optimizer_traits = detail::optimizer_traits(question.optimizer, question.moments_dtype);
  const auto asked = resolve_precision(question.precision, question.device);
  detail::check_possible(question.strategy, layout, asked, question.optimizer, *question.optimizer_traits);
  auto plan = asked;
  plan.params = detail::computed_dtype(layout, asked);
  // Alone, gradients are reduced in every pass, and none is whole when the next one begins.
  auto traced = question;
  if (detail::is_divided(layout, asked) && layout.ranks * layout.replicas == 1) traced.accumulate = 1;
  const auto trace = detail::trace_step(make, batch, traced, plan);
  return detail::lay_out(trace, layout, asked, question);
}

}  // namespace levin
