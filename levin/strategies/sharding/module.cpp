#include "levin/strategies/sharding/module.h"

#include <algorithm>
#include <exception>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/graphs.h"
#include "levin/nn/checkpointing/after_recompute.h"
#include "levin/strategies/module_states.h"

namespace levin::detail {

/// How hooks of graphs that the user still holds find the module: not at all once it is gone.
struct ShardedModule::Link {
  ShardedModule* module;
};

namespace {

/// Hands gradients on as they are, when all that follows a unit's inputs has been differentiated: the unit is done.
/// `done` says whether that was the backward of the step.
class AfterBackward final : public torch::autograd::Node {
 public:
  AfterBackward(torch::autograd::edge_list edges, std::function<bool()> done, std::function<void()> dropped)
      : Node(std::move(edges)), done_(std::move(done)), dropped_(std::move(dropped)) {}
  ~AfterBackward() override {
    if (!ran_) dropped_();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (done_()) ran_ = true;
    return std::move(gradients);
  }
  std::string name() const override { return "LevinAfterBackward"; }

 private:
  std::function<bool()> done_;
  std::function<void()> dropped_;
  bool ran_ = false;
};

/// The same values and version counter, another place in the graph. (A view would refuse changes in place.)
Tensor behind(const Tensor& tensor, const std::shared_ptr<torch::autograd::Node>& node) {
  auto* impl = tensor.unsafeGetTensorImpl();
  Tensor alias(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
  torch::autograd::set_history(alias, node);
  return alias;
}

}  // namespace

/// Gathers what a unit needs before its forward and releases it after.
class ShardedModule::Around final : public Interceptor {
 public:
  Around(ShardedModule& module, ShardedUnit& unit)
      : module_(module), unit_(unit), doing_(concat("forward of unit \"", unit.name, "\"")) {}

  void around(Call& call) override {
    auto& m = module_;
    const bool again = m.in_backward_ || m.inner_;
    LEVIN_CHECK(m.depth_ > 0 || again, "[", m.options_.strategy, "] \"", unit_.name,
                "\" was called outside of the module that setup returned; call that one: net(x), or "
                "net.call(&Net::method, x)");
    if (again) {  // for its activations: backward releases it
      m.use_again(unit_);
      return call.proceed();
    }
    m.resume_forward();
    if (m.options_.everyone) m.options_.everyone->note_doing(doing_);
    m.schedule_->enter_forward(unit_.number);
    const bool training = at::GradMode::is_enabled();
    if (training) m.watch_inputs(call, unit_);
    call.proceed();
    if (training) m.watch_outputs(call, unit_);
    m.schedule_->leave_forward(unit_.number);
  }

 private:
  ShardedModule& module_;
  ShardedUnit& unit_;
  const std::string doing_;
};

/// Called when a parameter has its gradient of a backward.
class ShardedModule::Arrival final : public torch::autograd::PostAccumulateGradHook {
 public:
  Arrival(std::shared_ptr<Link> link, ShardGroup& group, size_t param,
          std::unique_ptr<torch::autograd::PostAccumulateGradHook> before)
      : link_(std::move(link)), group_(group), param_(param), before_(std::move(before)) {}

  void operator()(const Tensor& param) override {
    if (before_) (*before_)(param);
    const auto* m = link_->module;
    if (m && m->in_backward_ && !m->inner_ && m->sends_grads()) group_.send_grad(param_);
  }

 private:
  const std::shared_ptr<Link> link_;
  ShardGroup& group_;
  const size_t param_;
  const std::unique_ptr<torch::autograd::PostAccumulateGradHook> before_;
};

/// Where a forward can resume after a backward in the middle of it.
class ShardedModule::Entrance final : public Interceptor {
 public:
  explicit Entrance(ShardedModule& module) : module_(module) {}
  void around(Call& call) override {
    if (!module_.in_backward_ && !module_.inner_) module_.resume_forward();
    call.proceed();
  }

 private:
  ShardedModule& module_;
};

ShardedModule::ShardedModule(torch::nn::Module& module, std::vector<std::unique_ptr<ShardGroup>> groups,
                             std::vector<ShardedUnit> units, std::shared_ptr<Lanes> lanes,
                             std::unique_ptr<Residency> residency, ShardedModuleOptions options)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      lanes_(std::move(lanes)),
      options_(std::move(options)),
      buffers_(changing_buffers(module)),
      link_(std::make_shared<Link>(Link{this})) {
  std::vector<SelectedUnit> watched;
  Schedule::Groups scheduled;
  std::vector<Schedule::Groups> needs;
  for (const auto& group : groups_) scheduled.push_back(group.get());
  for (auto& unit : units_) {
    unit.number = needs.size();
    needs.emplace_back(unit.groups.begin(), unit.groups.end());
    if (unit.unit) {
      attachments_.push_back(unit.unit->attach(std::make_shared<Around>(*this, unit), Order::kSharding));
      attachments_.push_back(unit.unit->attach(std::make_shared<detail::AfterRecompute>([this] { after_recompute(); }),
                                               Order::kRecompute));
      watched.push_back({unit.name, unit.unit, &unit.unit->as_module()});
    }
    watch_gradients(unit);
  }
  for (const auto& group : groups_) watch_arrivals(*group);
  auto how = options_.schedule;
  how.on_reduced = [this](ScheduledGroup& group) { step_reduced(static_cast<ShardGroup&>(group)); };
  schedule_ = std::make_unique<Schedule>(std::move(scheduled), std::move(needs), std::move(residency), std::move(how));
  fired_ = FiredCheck(options_.strategy, watched);
  const auto entrance = std::make_shared<Entrance>(*this);
  for (auto* unit : options_.root_users) attachments_.push_back(unit->attach(entrance, Order::kSharding));
  for (const auto& group : groups_) alone_ = alone_ && group->alone();
}

ShardedModule::~ShardedModule() {
  link_->module = nullptr;
}

// ---- forward

void ShardedModule::before_forward() {
  if (inner_ && depth_ == 0) end_inner();  // it was left by an exception
  if (depth_++ > 0) return;
  exceptions_ = std::uncaught_exceptions();
  if (at::GradMode::is_enabled() && sync_) sync_buffers();
  begin_forward();
  if (options_.batchnorm) forward_batchnorm_.emplace(*options_.batchnorm);
}

void ShardedModule::sync_buffers() {
  if (options_.everyone) broadcast_states(*options_.everyone, buffers_);
}

/// A training step may call backward itself and then compute on: the parameters are shards again in between, so that an
/// optimizer can step.
void ShardedModule::resume_forward() {
  if (depth_ > 0 && !shows_full_) begin_forward();
}

/// What is allocated on the device besides gathered groups. None where nobody asks for it, or counts it.
std::optional<int64_t> ShardedModule::bytes_of_others() const {
  const auto device = lanes_->device();
  if (!options_.updates_in_place || !device.is_cuda()) return std::nullopt;
  auto bytes = accelerator_of(device).memory(device).allocated;
  for (const auto& group : groups_)
    if (group->state() != ShardGroup::State::kSharded) bytes -= group->full_bytes();
  return bytes;
}

void ShardedModule::begin_forward() {
  training_ = at::GradMode::is_enabled();
  shows_full_ = true;
  renew_outdated();
  bytes_before_forward_ = bytes_of_others();
  for (const auto& group : groups_) group->take_over_shards();
  for (const auto& group : groups_) group->look_at_noted(looking_);
  schedule_->begin_forward(training_);  // first: the copies of the first units have begun while parameters are set
  for (const auto& group : groups_) group->show_full();
}

/// Between two forwards anybody may write this rank's shards. Full parameters that are still in memory then are kept
/// only when the shards have the same values: an optimizer that steps through data() changes no version. Ranks gather
/// together, so that one which has something new makes all of them do it.
void ShardedModule::renew_outdated() {
  std::vector<ShardGroup*> kept;
  for (const auto& group : groups_) {
    if (group->newest() == Newest::kNoted) continue;  // it finds out itself, when it is used
    if (options_.schedule.keeps_full || group->state() != ShardGroup::State::kSharded)
      kept.push_back(group.get());
    else
      group->renew();
  }
  if (kept.empty()) return;
  // Replays follow steps of the optimizer that this code does not see.
  bool outdated =
      is_capturing() || std::ranges::any_of(kept, [](auto* group) { return group->newest() == Newest::kAllShards; });
  if (!outdated) {
    for (auto* group : kept) outdated = group->outdated() || outdated;
    if (options_.ranks && options_.ranks->size() > 1) {
      auto any = at::full({1}, outdated ? 1 : 0, at::TensorOptions(lanes_->device()).dtype(at::kLong));
      options_.ranks->all_reduce(any, ReduceOp::kMax);
      outdated = any.item<int64_t>() != 0;
    }
  }
  if (!outdated) return;
  for (auto* group : kept) {
    group->release(/*keep_memory=*/true);
    group->renew();
  }
}

void ShardedModule::leave_forward() {
  if (--depth_ > 0) return;
  forward_batchnorm_.reset();
  if (std::uncaught_exceptions() > exceptions_) {
    if (!is_capturing()) abandon();  // else capture_failed follows
    return;
  }
  if (!std::exchange(shows_full_, false)) return;  // it ended with a backward
  schedule_->end_forward();
  if (!training_ && !is_capturing()) {
    lanes_->synchronize();  // who changes parameters in host memory now must not meet a copy that still reads them
    if (auto* order = lanes_->order()) order->begin_step();
  }
  for (const auto& group : groups_) group->show_shards();
}

void ShardedModule::after_forward(std::span<Tensor> outputs) {
  // (Not when forward is left, where nothing may throw.)
  if (depth_ == 0) schedule_->gather_rest(/*keeps=*/shows_full_);
  for (auto& output : outputs) {
    if (output.is_leaf()) {
      hands_out_leaf_ = true;
      continue;
    }
    output.register_hook([link = link_](const Tensor&) {
      if (!link->module) return;
      if (link->module->in_backward_)
        link->module->armed_ = true;
      else
        link->module->begin_inner("");
    });
  }
}

/// Outside of the schedule: nothing is released for it, and nothing is gathered ahead.
void ShardedModule::gather_aside(const std::vector<ShardGroup*>& groups) {
  for (auto* group : groups) {
    if (group->state() == ShardGroup::State::kSharded) gathered_aside_.push_back(group);
    group->begin_gather();
  }
  for (auto* group : groups) group->finish_gather();
}

// ---- torch::autograd::grad outside of backward: a gradient penalty, or anything else that is part of a loss

void ShardedModule::begin_inner(const std::string& unit) {
  if (inner_) return;
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  bool accumulates = !nodes || nodes->empty();
  for (const auto& group : groups_)
    for (const auto& param : group->params()) {
      if (accumulates || !param.param.requires_grad()) continue;
      const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(param.param);
      const auto node = accumulator ? nodes->find(accumulator.get()) : nodes->end();
      accumulates = node != nodes->end() && node->second.needed_;
    }
  LEVIN_CHECK(!accumulates, "[", options_.strategy, "] backward of ",
              unit.empty() ? std::string("the module") : fmt::format("\"{}\"", unit),
              " was started by loss.backward(); fabric.backward(loss) is needed");
  inner_ = true;
  // Its graph has nodes that use full parameters at times that nobody announces.
  if (at::GradMode::is_enabled()) schedule_->hold_groups();
  for (const auto& group : groups_) group->show_full();
  gather_aside(units_.back().groups);
  torch::autograd::Engine::get_default_engine().queue_callback([link = link_] {
    if (link->module) link->module->end_inner();
  });
}

void ShardedModule::end_inner() {
  if (!std::exchange(inner_, false)) return;
  for (auto* group : std::exchange(gathered_aside_, {}))
    if (group->progress.computing == 0) group->release(options_.schedule.keeps_full);
  if (depth_ > 0 && shows_full_) return;
  for (const auto& group : groups_) group->show_shards();
}

void ShardedModule::watch_inputs(Call& call, ShardedUnit& unit) {
  std::vector<Tensor> inputs;
  call.each_input([&](Tensor& input) {
    if (input.requires_grad()) inputs.push_back(input);
  });
  schedule_->expect_backward(unit.number);
  if (inputs.empty()) return;  // the end of backward sees to it
  torch::autograd::edge_list edges;
  for (const auto& input : inputs) edges.push_back(torch::autograd::impl::gradient_edge(input));
  const auto node = std::shared_ptr<torch::autograd::Node>(
      new AfterBackward(
          std::move(edges), [link = link_, &unit] { return !link->module || link->module->post_backward(unit); },
          [link = link_, &unit] {
            if (link->module) link->module->schedule_->drop_backward(unit.number);
          }),
      torch::autograd::deleteNode);
  call.each_input([&](Tensor& input) {
    if (input.requires_grad()) input = behind(input, node);
  });
}

void ShardedModule::watch_outputs(Call& call, ShardedUnit& unit) {
  call.each_output([&](Tensor& output) {
    if (!output.requires_grad() || output.is_leaf()) return;
    output.register_hook([link = link_, &unit](const Tensor&) {
      if (link->module) link->module->pre_backward(unit);
    });
  });
}

// ---- backward

void ShardedModule::before_backward(const Tensor&) {
  if (is_capturing() && !keeps_gradients())
    for (const auto& group : groups_)
      if (!reduces() || group->has_unreduced()) throw GradientsAccumulate();
  end_inner();  // one that was left by an exception
  armed_ = hands_out_leaf_;
  hands_out_leaf_ = false;
  in_backward_ = true;
  if (options_.batchnorm) backward_batchnorm_.emplace(*options_.batchnorm);
  for (const auto& group : groups_) {
    group->show_full();
    if (group->take_grads()) group->progress.used = true;
  }
  plan_updates();
  std::optional<int64_t> room;
  if (const auto now = bytes_of_others(); now && bytes_before_forward_ && !groups_.empty())
    room = std::max<int64_t>(0, *now - *bytes_before_forward_) / groups_.front()->element_size();
  schedule_->begin_backward(reduces(), room);
  if (!schedule_->holds_groups()) return schedule_->use_root();
  gather_aside(units_.back().groups);
  for (const auto& group : groups_) gather_aside({group.get()});
}

/// Parameters and gradients are on the device at the end of a unit's backward. An optimizer that needs nothing else
/// steps there, and the new values are copied to the host in place of the gradients: its cores have nothing to do.
void ShardedModule::plan_updates() {
  std::vector<std::shared_ptr<UnitOptimizer>> stateless;
  if (sync_ && !schedule_->holds_groups()) stateless = stateless_optimizers();
  for (const auto& group : groups_) {
    std::function<void()> step;
    for (const auto& optimizer : stateless)
      if (optimizer->owns_all(*group)) step = [optimizer, &each = *group] { optimizer->step_in_place(each); };
    group->set_update(std::move(step));
    if (group->options().offload && group->trained() && !group->updates_in_place())
      refuse_capture(options_.strategy + " brings gradients to host memory, where the host adds them up");
  }
}

/// Those that may step units on the device.
std::vector<std::shared_ptr<UnitOptimizer>> ShardedModule::stateless_optimizers() const {
  std::vector<std::shared_ptr<UnitOptimizer>> stateless;
  if (!options_.updates_in_place) return stateless;
  for (const auto& weak : optimizers_)
    if (auto optimizer = weak.lock(); optimizer && optimizer->in_backward() && optimizer->is_stateless())
      stateless.push_back(std::move(optimizer));
  return stateless;
}

/// A unit computes again, for its activations or in an inner pass.
void ShardedModule::use_again(ShardedUnit& unit) {
  if (inner_ || (in_backward_ && schedule_->holds_groups())) return gather_aside(unit.groups);
  schedule_->use(unit.number);
}

/// All activations of a unit are in memory now: what the unit before it has sent must be gone, so that there is room
/// for gradients. It has had the time of a forward.
void ShardedModule::after_recompute() {
  if (in_backward_ && !inner_ && alone_) schedule_->settle_early();
}

void ShardedModule::pre_backward(ShardedUnit& unit) {
  if (!in_backward_) {
    begin_inner(unit.name);
    return gather_aside(unit.groups);
  }
  armed_ = true;
  if (!schedule_->holds_groups()) return schedule_->enter_backward(unit.number);
  for (auto* group : unit.groups) group->progress.used = true;
  gather_aside(unit.groups);
}

bool ShardedModule::post_backward(ShardedUnit& unit) {
  if (in_backward_) schedule_->leave_backward(unit.number);
  return in_backward_;
}

// ---- gradients of weights, apart from those of activations

int ShardedModule::weight_part(const Tensor& weight) const {
  for (size_t i = 0; i + 1 < units_.size(); ++i)  // the root is there all through backward
    for (const auto* group : units_[i].groups)
      for (const auto& param : group->params())
        if (param.param.is_same(weight)) return static_cast<int>(i);
  return -1;
}

void ShardedModule::enter_weights(int part) {
  armed_ = true;  // gradients may have come in the backward of activations, and wait to be reduced
  if (part >= 0) pre_backward(units_[static_cast<size_t>(part)]);
}

void ShardedModule::leave_weights(int part) {
  (void)post_backward(units_[static_cast<size_t>(part)]);
}

/// A unit that ran on one rank counts as run on all.
void ShardedModule::check_fired() {
  if (!fired_.watching()) return;
  if (options_.all_ranks) {
    std::vector<uint8_t> bytes;
    for (const bool fired : fired_.fired()) bytes.push_back(fired);
    auto fired = at::tensor(bytes, at::kByte);
    options_.all_ranks->all_reduce(fired, ReduceOp::kMax);
    for (size_t i = 0; i < bytes.size(); ++i)
      if (fired.const_data_ptr<uint8_t>()[i]) fired_.mark(i);
  }
  fired_.finish();
}

/// Optimizers that step in backward take it from here.
void ShardedModule::step_reduced(ShardGroup& group) {
  if (!sync_) return;
  std::vector<std::shared_ptr<UnitOptimizer>> optimizers;
  for (const auto& weak : optimizers_)
    if (auto optimizer = weak.lock()) optimizers.push_back(std::move(optimizer));
  UnitOptimizer::group_is_ready(optimizers, group, group.arrival());
}

/// The first gradient of a unit comes when part of its backward is done: the moment to free the memory of the reduction
/// before, so that no more than three units' worth is allocated at once. Any gradient says that the module takes part
/// in the loss; it need not have come through an output.
void ShardedModule::watch_gradients(ShardedUnit& unit) {
  bool first = true;
  for (auto group = unit.groups.rbegin(); group != unit.groups.rend(); ++group)
    for (auto param = (*group)->params().rbegin(); param != (*group)->params().rend(); ++param) {
      if (!param->param.requires_grad() || (*group)->whole()) continue;
      param->param.register_hook([link = link_, settles = std::exchange(first, false)](const Tensor&) {
        if (!link->module || !link->module->in_backward_) return;
        link->module->armed_ = true;
        if (settles) link->module->schedule_->settle_early();
      });
    }
}

/// Where nobody has to be asked, large gradients leave for host memory as they come: the copies have the time of the
/// unit's own backward, and the last unit's are almost all there when backward ends.
void ShardedModule::watch_arrivals(ShardGroup& group) {
  for (size_t i = 0; i < group.params().size(); ++i) {
    const auto& param = group.params()[i].param;
    if (!param.requires_grad() || group.whole() || !group.alone()) continue;
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(param));
    torch::autograd::impl::set_post_acc_grad_hooks(param,
                                                   std::make_unique<Arrival>(link_, group, i, std::move(before)));
  }
}

void ShardedModule::after_backward(const std::exception* failure) {
  if (failure && is_capturing()) return;  // capture_failed follows
  if (failure) return backward_failed(*failure);
  end_backward();
  if (!std::exchange(armed_, false)) return;
  if (is_capturing()) return;  // ranks have met in the steps before
  if (sync_) {
    if (schedule_->learns_order())
      schedule_->adopt_order(broadcast_string(*options_.all_ranks, schedule_->seen_order()));
    if (auto* order = lanes_->order()) order->begin_step();
  }
  check_fired();
}

void ShardedModule::end_backward() {
  backward_batchnorm_.reset();
  schedule_->end_reductions(/*used=*/armed_);
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock()) {
      optimizer->join();
      optimizer->take_stepped();
    }
  for (const auto& group : groups_) group->finish_reduce_on_host();
  schedule_->end_backward();
  for (const auto& group : groups_) {
    if (!reduces() || !armed_) group->keep_unreduced();
    group->show_shards();
    group->give_grads();
  }
  gathered_aside_.clear();
  for (const auto& group : groups_) group->set_update(nullptr);
  in_backward_ = false;
  shows_full_ = false;
  if (!reduces()) return;
  for (const auto& group : groups_) group->expect_step();
}

void ShardedModule::backward_failed(const std::exception& error) {
  if (in_backward_) abandon();
  std::vector<std::string> stepped;
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock()) {
      for (const auto& name : optimizer->take_stepped())
        if (auto unit = name.empty() ? "the root" : fmt::format("\"{}\"", name);
            std::ranges::find(stepped, unit) == stepped.end())
          stepped.push_back(std::move(unit));
      optimizer->backward_failed();
    }
  if (stepped.empty()) return;
  throw Error(
      fmt::format("{} (in backward, when optimizer_in_backward had stepped {} already and nothing else; resume "
                  "from a checkpoint, or the parameters are of different steps)",
                  one_line(error), fmt::join(stepped, ", ")));
}

void ShardedModule::abandon() {
  backward_batchnorm_.reset();
  inner_ = false;
  gathered_aside_.clear();
  if (auto* order = lanes_->order()) order->lose();
  for (const auto& weak : optimizers_) try {
      if (const auto optimizer = weak.lock()) optimizer->join();
    } catch (const std::exception&) {  // it follows from what ended the pass, or comes again
    }
  forget_pass(/*keeps_gradients=*/false);
}

void ShardedModule::forget_pass(bool keeps_gradients) {
  for (const auto& group : groups_) group->abandon(keeps_gradients);
  schedule_->abandon(in_backward_ ? Pass::kBackward : Pass::kForward);
  in_backward_ = false;
  shows_full_ = false;
  armed_ = false;
}

// ---- steps in CUDA graphs

std::string ShardedModule::prepare_capture(bool keeps_gradients) {
  const bool trains = at::GradMode::is_enabled();
  const auto stateless = stateless_optimizers();
  for (const auto& group : groups_) {
    if (!group->options().offload) continue;
    if (!group->is_copied_alone())
      return options_.strategy + " has parameters in host memory that is not pinned, or of another dtype";
    if (trains && group->trained() &&
        std::ranges::none_of(stateless, [&](const auto& optimizer) { return optimizer->owns_all(*group); }))
      return options_.strategy +
             " has parameters in host memory whose optimizer has state, or is not stepped in backward";
    if (trains && keeps_gradients) return options_.strategy + " accumulates gradients in host memory";
  }
  if (!trains || !stateless.empty()) return {};
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock(); optimizer && optimizer->in_backward())
      return options_.strategy + " steps units in backward, and the host decides which";
  return {};
}

/// Whoever reads or changes parameters in host memory now must not meet a copy.
void ShardedModule::after_replay() {
  if (std::ranges::none_of(groups_, [](const auto& group) { return group->options().offload; })) return;
  const auto device = lanes_->device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

/// The gradients of earlier calls are as they were; whoever captured puts those of parameters back.
void ShardedModule::capture_failed() {
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock()) {
      (void)optimizer->take_stepped();
      optimizer->backward_failed();
    }
  backward_batchnorm_.reset();
  forward_batchnorm_.reset();
  inner_ = false;
  gathered_aside_.clear();
  hands_out_leaf_ = false;
  forget_pass(/*keeps_gradients=*/true);
  for (const auto& group : groups_) group->expect_step();
}

uint64_t ShardedModule::layout_version() const {
  uint64_t sum = 0;
  for (const auto& group : groups_) sum += group->layout_version();
  return sum;
}

}  // namespace levin::detail
