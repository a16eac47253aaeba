#include "levin/fabric/compiled_step.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/trace_span.h"
#include "levin/nn/failed_unit.h"
#include "levin/profilers/graph_units.h"

namespace levin::detail {
namespace {

/// Kinds of calls that are told apart; others run eagerly.
constexpr size_t kMostKinds = 256;
/// Captures of one step that may fail, and times that graphs may turn out not to fit any more.
constexpr int kMostFailures = 3, kMostDrops = 8;

/// Inputs are where the graph expects them, for its life.
class SwapInputs {
 public:
  SwapInputs(const std::vector<Tensor*>& inputs, const std::vector<Tensor>& others) : inputs_(inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) before_.push_back(std::exchange(*inputs[i], others[i]));
  }
  ~SwapInputs() {
    for (size_t i = 0; i < inputs_.size(); ++i) *inputs_[i] = std::move(before_[i]);
  }
  SwapInputs(const SwapInputs&) = delete;
  SwapInputs& operator=(const SwapInputs&) = delete;

 private:
  const std::vector<Tensor*>& inputs_;
  std::vector<Tensor> before_;
};

/// Weights that were cast outside of the graph must not be used inside of it.
class NoAutocastCache {
 public:
  NoAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    for (const auto device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
      if (at::autocast::is_autocast_enabled(device)) at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

Tensor static_input(const Tensor& input) {
  return input.is_non_overlapping_and_dense() ? at::empty_strided(input.sizes(), input.strides(), input.options())
                                              : at::empty(input.sizes(), input.options());
}

void copy_inputs(const std::vector<Tensor>& to, const std::vector<Tensor*>& from) {
  if (to.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> sources;
  for (const auto* tensor : from) sources.push_back(*tensor);
  at::_foreach_copy_(to, sources, /*non_blocking=*/true);
}

std::vector<const void*> data_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::vector<const void*> all;
  const auto add = [&](const Tensor& t) {
    if (t.defined() && t.has_storage()) all.push_back(t.const_data_ptr());
  };
  for (const auto& module : modules) {
    for (const auto& parameter : module->parameters()) add(parameter);
    for (const auto& buffer : module->buffers()) add(buffer);
  }
  return all;
}

}  // namespace

void StepKey::add(const Tensor& tensor) {
  if (!tensor.defined()) return add(-1);
  add(static_cast<int64_t>(tensor.scalar_type()));
  add(static_cast<int64_t>(tensor.device().type()));
  add(tensor.device().index());
  add(tensor.requires_grad());
  add(tensor.layout() == at::kStrided);
  add(tensor.dim());
  if (tensor.layout() != at::kStrided) return;
  for (const auto size : tensor.sizes()) add(size);
  for (const auto stride : tensor.strides()) add(stride);
}

std::string capture_failure(const std::exception& error) {
  auto line = one_line(error);
  if (dynamic_cast<const CaptureRefused*>(&error)) return line.substr(line.find(']') + 2);
  if (line.find("captur") != std::string::npos)
    line =
        "the host waits for the device, or copies between the two, in the step (item(), cpu(), a condition on a "
        "tensor, a "
        "tensor made from numbers): " +
        line;
  return line;
}

StepCompiler::StepCompiler(std::shared_ptr<GraphDevice> device, std::function<StepSurroundings()> surroundings,
                           int64_t max_graphs)
    : device_(std::move(device)), find_surroundings_(std::move(surroundings)), max_graphs_(max_graphs) {
  LEVIN_CHECK(max_graphs >= 1, "[compile] max_graphs ", max_graphs, " is not allowed (1 or more)");
}

StepCompiler::~StepCompiler() {
  try {
    drop();
  } catch (const std::exception& error) {  // a device that has failed fails what comes next, too
    log_warning(concat("[compile] gradients could not be kept: ", one_line(error)));
  }
}

void StepCompiler::look_around() {
  looked_ = true;
  around_ = find_surroundings_();
  units_.clear();
  params_.clear();
  std::set<c10::TensorImpl*> known;
  const auto add = [&](const Tensor& param) {
    if (param.defined() && known.insert(param.unsafeGetTensorImpl()).second) params_.push_back(param);
  };
  for (const auto& module : around_.modules) {
    units_.push_back(module);
    // Without itself: it may live on the stack.
    for (auto& unit : module->modules(/*include_self=*/false)) units_.push_back(std::move(unit));
    for (const auto& param : module->parameters()) add(param);
  }
  for (const auto& optimizer : around_.optimizers)
    for (size_t group = 0; group < optimizer->num_groups(); ++group)
      for (const auto& param : optimizer->params(group)) add(param);
}

void StepCompiler::watch() {
  watched_.clear();
  layouts_.clear();
  const auto add = [&](const Tensor& t) {
    if (t.defined() && t.has_storage()) watched_.push_back({t, t.const_data_ptr()});
  };
  for (const auto& param : params_) add(param);
  for (const auto& module : around_.modules)
    for (const auto& buffer : module->buffers()) add(buffer);
  for (const auto& optimizer : around_.optimizers) layouts_.push_back(optimizer->layout_version());
  for (const auto& sync : around_.syncs) layouts_.push_back(sync->layout_version());
}

/// Whether the graphs work on the memory that parameters and optimizers have now.
bool StepCompiler::fits() const {
  for (const auto& [tensor, data] : watched_)
    if (tensor.const_data_ptr() != data) return false;
  auto layout = layouts_.begin();
  for (const auto& optimizer : around_.optimizers)
    if (optimizer->layout_version() != *layout++) return false;
  for (const auto& sync : around_.syncs)
    if (sync->layout_version() != *layout++) return false;
  return true;
}

/// With the modes of torch, of the modules and of the parameters.
StepKey StepCompiler::full_key(const StepCall& call) const {
  auto key = call.key;
  for (const char letter : call.name) key.add(letter);
  key.add(at::GradMode::is_enabled() | c10::InferenceMode::is_enabled() << 1 |
          at::globalContext().deterministicAlgorithms() << 2);
  key.add(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  const auto device = device_->device().type();
  key.add(at::autocast::is_autocast_enabled(device) ? static_cast<int64_t>(at::autocast::get_autocast_dtype(device))
                                                    : -1);
  uint64_t flags = 1;
  const auto add = [&](bool flag) {
    if (flags >> 62 != 0) key.add(static_cast<int64_t>(std::exchange(flags, 1)));
    flags = flags << 1 | static_cast<uint64_t>(flag);
  };
  for (const auto& unit : units_) add(unit->is_training());
  for (const auto& param : params_) add(param.requires_grad());
  key.add(static_cast<int64_t>(flags));
  return key;
}

StepCompiler::Entry* StepCompiler::entry_of(StepKey key) {
  for (auto& entry : entries_)
    if (entry->key == key) return entry.get();
  if (entries_.size() >= kMostKinds) return nullptr;
  return entries_.emplace_back(std::make_unique<Entry>(Entry{.key = std::move(key)})).get();
}

void StepCompiler::refuse(std::string_view name, const std::string& reason) {
  give_up(name);
  reasons_[std::string(name)] = reason;
  warn_once(concat("[compile] ", name, " runs eagerly: ", reason));
}

/// Other ranks, where there are any, are told at the next call.
void StepCompiler::give_up(std::string_view name) {
  refused_.emplace(name);
  if (!find_surroundings_().exchange) given_up_.emplace(name);
}

void StepCompiler::refuse_entry(StepCall& call, Entry& entry, const std::string& reason) {
  entry.refused = true;
  reasons_[std::string(call.name)] = reason;
  warn_once(concat("[compile] ", call.name, " runs eagerly: ", reason));
  if (++failures_[std::string(call.name)] >= kMostFailures) give_up(call.name);
}

void StepCompiler::drop() {
  for (auto& entry : entries_) {
    if (!entry->graph) continue;
    // A gradient would keep all memory of the graph.
    const at::NoGradGuard no_grad;
    for (auto& [param, after] : entry->graph->gradients)
      if (auto& grad = param.mutable_grad(); grad.defined() && after.defined() && grad.is_same(after)) {
        grad = after.clone();
        // Where a reducer holds the ends of the autograd graph, eager passes add to it on their stream, and may free it
        // while others still run.
        const auto stream = device_->stream();
        if (stream && torch::autograd::impl::try_get_grad_accumulator(param)) grad.record_stream(*stream);
      }
    entry->graph.reset();
    entry->seen = kWarmUp - 1;
  }
  graphs_ = 0;
  watched_.clear();
  layouts_.clear();
}

void StepCompiler::abandon() noexcept {
  for (auto& entry : entries_) {
    if (!entry->graph) continue;
    try {
      for (auto& [param, after] : entry->graph->gradients)
        if (auto& grad = param.mutable_grad(); grad.is_same(after)) grad.reset();
      entry->graph->graph->destroy();
      entry->graph.reset();
    } catch (const std::exception&) {  // a device that has failed
    }
  }
  graphs_ = 0;
}

bool StepCompiler::keeps(const StepCall& call) const {
  return call.accumulates_gradients || accumulating_.contains(call.name);
}

/// Gradients of earlier calls are there that were not at the capture: the graph would replace them.
bool StepCompiler::would_lose_gradients(const StepCall& call, const CompiledGraph& graph) {
  return !call.drops_gradients &&
         std::ranges::any_of(graph.had_none, [](const Tensor& param) { return param.grad().defined(); });
}

void StepCompiler::run_eagerly(StepCall& call) {
  ++counts_.eager;
  const StepScope scope{.keeps_gradients = keeps(call)};
  const EnterStep enter(scope);
  call.run();
  for (const auto& param : params_)
    if (param.requires_grad() && param.grad().defined()) had_gradient_.insert(param.unsafeGetTensorImpl());
}

CompiledGraph* StepCompiler::call(StepCall& call) {
  if (!current_step() && !given_up_.contains(call.name)) {
    if (!looked_ || find_surroundings_().version != around_.version) {
      look_around();
      drop();
    }
    if (keeps(call)) free_frozen();
    if (ranks_meet()) return call_together(call);
  }
  if (current_step() || refused_.contains(call.name)) {
    ++counts_.eager;
    call.run();
    return nullptr;
  }
  Entry* entry = nullptr;
  const auto wish = wish_of(call, entry);
  if (wish == kReplay || (wish == kCapture && try_capture(call, *entry))) {
    replay(call, *entry->graph);
    return entry->graph.get();
  }
  run_eagerly(call);
  return nullptr;
}

StepCompiler::Wish StepCompiler::wish_of(const StepCall& call, Entry*& entry) {
  if (refused_.contains(call.name)) return kNever;
  entry = entry_of(full_key(call));
  if (!entry || entry->refused) return kEager;
  if (graphs_ > 0 && !fits()) {
    drop();
    look_around();
    if (++counts_.dropped >= kMostDrops)
      refuse(call.name,
             "the memory of parameters or of the optimizer's state, or a number that is part of the graph, changes "
             "again and again");
  }
  if (entry->graph)
    if (const auto reason = entry->graph->graph->why_unfit(); !reason.empty()) {
      drop();
      refuse(call.name, reason);
      return kNever;
    }
  if (entry->graph && entry->graph->graph->is_outdated()) {
    drop();
    look_around();
    if (++counts_.dropped >= kMostDrops)
      refuse(call.name, "memory that decided how the step is fused changes again and again");
  }
  if (entry->graph && would_lose_gradients(call, *entry->graph)) {
    accumulating_.emplace(call.name);
    drop();
  }
  if (entry->graph) return kReplay;
  return ++entry->seen > kWarmUp ? kCapture : kEager;
}

bool StepCompiler::ranks_meet() const {
  return around_.exchange && std::ranges::any_of(around_.syncs, [](const auto& sync) { return sync->communicates(); });
}

/// The numbers of all ranks. A rank that calls another step brings -1: nothing is captured then, and what is wrong
/// shows where the steps communicate.
std::vector<int64_t> StepCompiler::exchange(std::string_view name, int64_t number) const {
  constexpr int64_t kStates = 8;
  uint64_t hash = 1469598103934665603ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  const auto step = static_cast<int64_t>(hash >> 8);
  auto all = around_.exchange(step * kStates + number);
  for (auto& each : all) each = each / kStates == step ? each % kStates : -1;
  return all;
}

/// Only rank 0 prints: it is told the reason of the first rank that brings 0.
void StepCompiler::share_reason(std::string_view name, const std::vector<int64_t>& numbers) {
  const auto rank = static_cast<int>(std::ranges::find(numbers, 0) - numbers.begin());
  if (rank == static_cast<int>(numbers.size())) return;
  const auto reason = around_.share(reasons_[std::string(name)], rank);
  if (rank > 0 && !reason.empty()) warn_once(concat("[compile] ", name, " runs eagerly: on rank ", rank, ": ", reason));
}

CompiledGraph* StepCompiler::call_together(StepCall& call) {
  Entry* entry = nullptr;
  const auto wish = wish_of(call, entry);
  const auto wishes = exchange(call.name, wish);
  const auto common = *std::ranges::min_element(wishes);
  if (common == kNever) {
    refused_.emplace(call.name);
    given_up_.emplace(call.name);
    share_reason(call.name, wishes);
  }
  if (common < kCapture) {
    run_eagerly(call);
    return nullptr;
  }
  bool ready = wish == kReplay || try_capture(call, *entry);
  if (std::ranges::find(wishes, kCapture) != wishes.end()) {
    const auto outcomes = exchange(call.name, ready);
    const bool mine = std::exchange(ready, *std::ranges::min_element(outcomes) == 1);
    if (!ready) share_reason(call.name, outcomes);
    // A graph that another rank has none for is of no use.
    if (mine && !ready && wish == kCapture) {
      put_back(entry->graph->before);
      entry->graph.reset();
      --graphs_;
    }
  }
  if (!ready) {
    run_eagerly(call);
    return nullptr;
  }
  replay(call, *entry->graph);
  if (around_.on_replayed) around_.on_replayed();
  return entry->graph.get();
}

/// What can be seen before a capture.
std::string StepCompiler::why_not(const StepCall& call) const {
  for (const auto* input : call.inputs) {
    if (input->device() != device_->device())
      return concat("a tensor of its arguments is on ", input->device(), ", not on ", device_->device());
    if (input->requires_grad()) return "a tensor of its arguments needs a gradient";
    if (input->layout() != at::kStrided) return "a tensor of its arguments is sparse";
  }
  if (torch::autograd::AnomalyMode::is_enabled()) return "anomaly detection looks at every operation";
  if (at::GradMode::is_enabled())
    for (const auto& optimizer : around_.optimizers)
      if (auto reason = optimizer->prepare_capture(); !reason.empty()) return reason;
  for (const auto& sync : around_.syncs)
    if (auto reason = sync->prepare_capture(keeps(call)); !reason.empty()) return reason;
  return {};
}

bool StepCompiler::try_capture(StepCall& call, Entry& entry) {
  look_around();
  reasons_[std::string(call.name)].clear();
  if (full_key(call) != entry.key) return false;
  if (auto reason = why_not(call); !reason.empty()) {
    refuse_entry(call, entry, reason);
    return false;
  }
  const bool settled = std::ranges::all_of(around_.syncs, [](const auto& sync) { return sync->is_settled(); });
  if (!settled && ++entry.waited < kMostFailures) return false;
  if (graphs_ >= max_graphs_) {
    refuse_entry(call, entry, concat("there are ", graphs_, " graphs for other shapes already (max_graphs)"));
    return false;
  }
  // Where a graph of autograd is alive, its ends belong to another stream.
  for (const auto& param : params_) {
    const auto end = param.requires_grad() ? torch::autograd::impl::try_get_grad_accumulator(param) : nullptr;
    if (end && !device_->captures(end->stream())) {
      if (++entry.waited >= kMostFailures)
        refuse_entry(call, entry, "a loss or an output of an earlier step is kept with its graph; detach it");
      return false;
    }
  }

  auto graph = std::make_unique<CompiledGraph>(device_->device());
  auto& before = graph->before;
  try {
    for (const auto* input : call.inputs) graph->inputs.push_back(static_input(*input));
    if (call.drops_gradients && at::GradMode::is_enabled() && !keeps(call))
      for (auto& param : params_) param.mutable_grad().reset();
    graph->keeps_gradients = keeps(call) && at::GradMode::is_enabled();
    if (graph->keeps_gradients) hold_gradients();
    for (const auto& param : params_) {
      before.push_back(param.grad());
      if (at::GradMode::is_enabled() && !graph->keeps_gradients && !param.grad().defined())
        graph->had_none.push_back(param);
    }
    device_->empty_cache();
    device_->set_inputs(graph->inputs);
    record(call, *graph);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    // Nothing was executed; what the host has done so far is undone, and done again.
    const auto gradients = std::move(before);
    graph.reset();
    for (const auto& sync : around_.syncs) sync->capture_failed();
    put_back(gradients);
    if (around_.scaler) around_.scaler->abandon_step();
    if (dynamic_cast<const GradientsAccumulate*>(&error)) {
      accumulating_.emplace(call.name);
      drop();
    } else {
      auto reason = capture_failure(error);
      if (const auto unit = unit_of(error); reason.find(unit) == std::string::npos) reason += "; " + unit;
      refuse_entry(call, entry, reason);
    }
    return false;
  }
  ++counts_.captured;
  ++graphs_;
  watch();
  entry.graph = std::move(graph);
  entry.graph->checks.start();
  return true;
}

/// "unit net.block (Block), input float32 [4, 3]" of an error that a unit let through.
std::string StepCompiler::unit_of(const std::exception& error) const {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (!of_torch) return {};
  for (const auto& module : around_.modules)
    if (const auto unit = failed_unit(*of_torch, module.get()); !unit.empty()) return unit;
  return {};
}

void StepCompiler::put_back(const std::vector<Tensor>& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) params_[i].mutable_grad() = gradients[i];
}

/// The capture itself, and what becomes of the gradients.
void StepCompiler::record(StepCall& call, CompiledGraph& graph) {
  const auto& before = graph.before;
  const auto data = data_of(around_.modules);
  std::vector<int64_t> versions;
  for (const auto& grad : before) versions.push_back(grad.defined() ? grad._version() : 0);
  {
    const SwapInputs swap(call.inputs, graph.inputs);
    const NoAutocastCache no_cache;
    const StepScope scope{.values = &graph.values,
                          .checks = &graph.checks,
                          .keeps_gradients = graph.keeps_gradients,
                          .ranks_agree = ranks_meet()};
    graph.graph = device_->capture([&] {
      const EnterStep enter(scope);
      if (!graph_units_are_wanted()) return call.run();
      std::vector<torch::nn::Module*> models;
      for (const auto& module : around_.modules) models.push_back(module.get());
      GraphUnitMarks marks(models, [&] { return device_->captured_nodes(); });
      call.run();
      graph.units = marks.units(device_->captured_kernels());
    });
  }
  if (data_of(around_.modules) != data)
    throw CaptureRefused(
        "[compile] the step puts other tensors in place of parameters or buffers; change them in place");
  if (!at::GradMode::is_enabled()) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    auto& grad = params_[i].mutable_grad();
    const bool same = grad.defined() && before[i].defined() && grad.is_same(before[i]);
    if (graph.keeps_gradients) {
      if (grad.defined() != before[i].defined() || (grad.defined() && !same))
        throw CaptureRefused("[compile] a parameter has its first gradient in this step, or loses it");
      continue;
    }
    if (before[i].defined() && before[i]._version() != versions[i]) throw GradientsAccumulate();
    if (same || (!grad.defined() && !before[i].defined())) continue;
    // Its memory is free for the next graph: it is read before that one runs, or not at all.
    if (grad.defined() && !lies_with_strategy(params_[i])) grad = device_->alias(grad, graph.graph);
    graph.gradients.push_back({params_[i], grad});
  }
}

/// Whether a gradient is in memory of the strategy, and not of a graph.
bool StepCompiler::lies_with_strategy(const Tensor& param) const {
  return std::ranges::any_of(around_.syncs, [&](const auto& sync) {
    const auto memory = sync->gradient_memory(param);
    return memory.defined() && memory.is_alias_of(param.grad());
  });
}

/// Gradients that stay in memory of their own, where graphs find them.
void StepCompiler::hold_gradients() {
  const at::NoGradGuard no_grad;
  for (auto& param : params_) {
    auto* impl = param.unsafeGetTensorImpl();
    if (!param.requires_grad()) continue;
    auto& grad = param.mutable_grad();
    if (!grad.defined() && !had_gradient_.contains(impl)) continue;
    Tensor memory;
    for (const auto& sync : around_.syncs)
      if (!memory.defined()) memory = sync->gradient_memory(param);
    auto& held = held_[impl];
    if (memory.defined() && !memory.is_same(held)) {
      held = memory;  // attach_gradients copies what is there
    } else if (!held.defined()) {
      // A gradient may lie in memory of a graph.
      held = grad.defined() ? grad.clone() : at::zeros_like(param);
      grad = held;
    }
  }
  attach_gradients();
}

/// A parameter that was frozen has zeros where it would have no gradient, and an optimizer would continue to step it.
void StepCompiler::free_frozen() {
  for (auto& param : params_)
    if (!param.requires_grad() && param.grad().defined() && had_gradient_.contains(param.unsafeGetTensorImpl()))
      param.mutable_grad().reset();
}

void StepCompiler::attach_gradients() {
  const at::NoGradGuard no_grad;
  for (auto& param : params_) {
    const auto found = held_.find(param.unsafeGetTensorImpl());
    if (found == held_.end() || !param.requires_grad()) continue;
    auto& grad = param.mutable_grad();
    if (grad.defined() && grad.is_same(found->second)) continue;
    if (grad.defined())
      found->second.copy_(grad);
    else
      found->second.zero_();
    grad = found->second;
  }
}

void StepCompiler::replay(StepCall& call, CompiledGraph& graph) {
  graph.before.clear();
  copy_inputs(graph.inputs, call.inputs);
  if (graph.keeps_gradients) attach_gradients();
  graph.values.refresh(*device_);
  if (graph.units && TraceSpan::is_recorded()) {
    const TraceSpan span(replay_span_name(graph.units->id));
    graph.graph->replay();
  } else {
    graph.graph->replay();
  }
  for (const auto& sync : around_.syncs) sync->after_replay();
  for (auto& [param, after] : graph.gradients) {
    auto& grad = param.mutable_grad();
    if (!grad.defined() && !after.defined()) continue;
    if (!grad.defined() || !after.defined() || !grad.is_same(after)) grad = after;
  }
  // What the scaler remembers is of the capture, or of an eager step before.
  if (around_.scaler && at::GradMode::is_enabled()) around_.scaler->begin_step();
  graph.checks.look();
  ++counts_.replayed;
}

}  // namespace levin::detail
