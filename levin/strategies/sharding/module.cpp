#include "levin/strategies/sharding/module.h"

#include <exception>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/strategies/ddp.h"

namespace levin::detail {

/// How hooks of graphs that the user still holds find the module: not at all once it is gone.
struct ShardedModule::Link {
  ShardedModule* module;
};

namespace {

/// Hands gradients on as they are, when all that follows a unit's inputs has been differentiated: the unit is done.
class AfterBackward final : public torch::autograd::Node {
 public:
  AfterBackward(torch::autograd::edge_list edges, std::function<void()> done, std::function<void()> dropped)
      : Node(std::move(edges)), done_(std::move(done)), dropped_(std::move(dropped)) {}
  ~AfterBackward() override {
    if (!ran_) dropped_();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    ran_ = true;
    done_();
    return std::move(gradients);
  }
  std::string name() const override { return "LevinAfterBackward"; }

 private:
  std::function<void()> done_;
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

/// Gathers what a unit needs before its forward and lets go of it after.
class ShardedModule::Around final : public Interceptor {
 public:
  Around(ShardedModule& module, ShardedUnit& unit) : module_(module), unit_(unit) {}

  void around(Call& call) override {
    auto& m = module_;
    LEVIN_CHECK(m.depth_ > 0 || m.in_backward_, "[", m.options_.strategy, "] \"", unit_.name,
                "\" was called outside of the module that setup returned; call that one: net(x), or "
                "net.call(&Net::method, x)");
    if (m.in_backward_) {  // again, for its activations: backward lets go of it
      m.use(unit_);
      return call.proceed();
    }
    m.resume_forward();
    m.use(unit_);
    for (auto* group : unit_.groups) ++group->progress.computing;
    const bool training = at::GradMode::is_enabled();
    if (training) m.watch_inputs(call, unit_);
    call.proceed();
    if (training) m.watch_outputs(call, unit_);
    for (auto* group : unit_.groups)
      if (--group->progress.computing == 0 && m.residency_->release_after_use(*group, Pass::kForward)) group->release();
  }

 private:
  ShardedModule& module_;
  ShardedUnit& unit_;
};

/// Where a forward can go on after a backward in the middle of it.
class ShardedModule::Entrance final : public Interceptor {
 public:
  explicit Entrance(ShardedModule& module) : module_(module) {}
  void around(Call& call) override {
    if (!module_.in_backward_) module_.resume_forward();
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
      residency_(std::move(residency)),
      options_(std::move(options)),
      buffers_(unique_buffers(module)),
      link_(std::make_shared<Link>(Link{this})) {
  std::vector<SelectedUnit> watched;
  for (auto& unit : units_) {
    if (unit.unit) {
      attachments_.push_back(unit.unit->attach(std::make_shared<Around>(*this, unit), Order::kSharding));
      watched.push_back({unit.name, unit.unit, &unit.unit->as_module()});
    }
    watch_first_gradient(unit);
  }
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
  if (depth_++ > 0) return;
  exceptions_ = std::uncaught_exceptions();
  if (at::GradMode::is_enabled() && sync_) sync_buffers();
  begin_forward();
  if (options_.batchnorm) forward_batchnorm_.emplace(*options_.batchnorm);
}

void ShardedModule::sync_buffers() {
  if (options_.everyone) broadcast_states(*options_.everyone, buffers_);
}

/// A training step may call backward itself and then compute on: the parameters are parts again in between, so that an
/// optimizer can step.
void ShardedModule::resume_forward() {
  if (depth_ > 0 && !shows_full_) begin_forward();
}

void ShardedModule::begin_forward() {
  training_ = at::GradMode::is_enabled();
  shows_full_ = true;
  renew_outdated();
  for (const auto& group : groups_) group->show_full();
  residency_->begin_pass(Pass::kForward, training_);
  auto& root = units_.back();
  use(root);
  for (auto* group : root.groups) {
    ++group->progress.computing;
    if (!training_) continue;
    group->progress.used = true;
    ++group->progress.to_come;  // until the end of backward: units that share the group must not be done with it before
  }
}

/// Between two forwards anybody may write this rank's parts. Wholes that are still in memory then are kept only when
/// the parts have the same values: an optimizer that steps through data() changes no version. Ranks gather together, so
/// that one which has something new makes all of them do it.
void ShardedModule::renew_outdated() {
  std::vector<ShardGroup*> kept;
  for (const auto& group : groups_) {
    if (options_.keeps_whole || group->state() != ShardGroup::State::kSharded)
      kept.push_back(group.get());
    else
      group->mark_stale();
  }
  // After gradients were reduced a step is to be expected, on all ranks.
  bool outdated = std::exchange(changed_, false);
  if (kept.empty()) return;
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
    group->mark_stale();
  }
}

void ShardedModule::leave_forward() {
  if (--depth_ > 0) return;
  forward_batchnorm_.reset();
  if (std::uncaught_exceptions() > exceptions_) return abandon();
  if (!std::exchange(shows_full_, false)) return;  // it ended with a backward
  for (auto* group : units_.back().groups) --group->progress.computing;
  if (!training_) {
    for (const auto& group : groups_) group->release(options_.keeps_whole);
    lanes_->synchronize();  // who changes parameters in host memory now must not meet a copy that still reads them
  }
  residency_->end_pass(Pass::kForward);
  for (const auto& group : groups_) group->show_shards();
}

void ShardedModule::after_forward(std::span<Tensor> outputs) {
  for (auto& output : outputs) {
    if (output.is_leaf()) {
      hands_out_leaf_ = true;
      continue;
    }
    output.register_hook([link = link_](const Tensor&) {
      if (link->module) link->module->armed_ = true;
    });
  }
}

void ShardedModule::use(ShardedUnit& unit) {
  if (unit.groups.empty()) return;
  residency_->before_use(unit.groups);
  for (auto* group : unit.groups) group->begin_gather();
  for (auto* group : unit.groups) group->finish_gather();
  // Only then: what has arrived and what it was copied to are both in memory until here.
  for (auto* group : residency_->ahead(unit.groups)) group->begin_gather();
}

void ShardedModule::watch_inputs(Call& call, ShardedUnit& unit) {
  for (auto* group : unit.groups) group->progress.used = true;
  std::vector<Tensor> inputs;
  call.each_input([&](Tensor& input) {
    if (input.requires_grad()) inputs.push_back(input);
  });
  for (auto* group : unit.groups) ++group->progress.to_come;
  if (inputs.empty()) return;  // the end of backward sees to it
  torch::autograd::edge_list edges;
  for (const auto& input : inputs) edges.push_back(torch::autograd::impl::gradient_edge(input));
  const auto node = std::shared_ptr<torch::autograd::Node>(new AfterBackward(
                                                               std::move(edges),
                                                               [link = link_, &unit] {
                                                                 if (link->module) link->module->post_backward(unit);
                                                               },
                                                               [link = link_, &unit] {
                                                                 if (!link->module) return;
                                                                 for (auto* group : unit.groups)
                                                                   if (group->progress.to_come > 0)
                                                                     --group->progress.to_come;
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
  armed_ = hands_out_leaf_;
  hands_out_leaf_ = false;
  in_backward_ = true;
  if (options_.batchnorm) backward_batchnorm_.emplace(*options_.batchnorm);
  for (const auto& group : groups_) {
    group->show_full();
    if (group->take_grads()) group->progress.used = true;
    group->progress.reduced = false;
  }
  residency_->begin_pass(Pass::kBackward, true);
  use(units_.back());
}

void ShardedModule::pre_backward(ShardedUnit& unit) {
  LEVIN_CHECK(in_backward_, "[", options_.strategy, "] backward of \"", unit.name,
              "\" was started by loss.backward(); fabric.backward(loss) is needed");
  armed_ = true;
  for (auto* group : unit.groups) group->progress.used = true;
  use(unit);
}

void ShardedModule::post_backward(ShardedUnit& unit) {
  for (auto* group : unit.groups) {
    auto& progress = group->progress;
    if (progress.to_come > 0) --progress.to_come;
    if (progress.to_come == 0) done_with(*group);
  }
}

void ShardedModule::done_with(ShardGroup& group) {
  if (residency_->release_after_use(group, Pass::kBackward)) group.release();
  if (reduces_now()) reduce(group);
}

bool ShardedModule::reduces_now() const {
  // Alone there is no communication to be saved by waiting, but memory.
  return (sync_ || alone_) && !options_.reduces_at_end;
}

void ShardedModule::reduce(ShardGroup& group) {
  if (!group.trained()) return;
  settle_reduction();
  group.begin_reduce();
  group.progress.reduced = true;
  reducing_ = &group;
  residency_->after_reduce(group);
}

/// At most one reduction is under way; the one before has had the time of a unit.
void ShardedModule::settle_reduction() {
  auto* group = std::exchange(reducing_, nullptr);
  if (!group) return;
  group->finish_reduce();
  if (!sync_) return;
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock()) optimizer->group_is_ready(*group, group->arrival());
}

/// The first gradient of a unit comes when part of its backward is done: the moment to take back the memory of the
/// reduction before, so that no more than three units' worth is there at once.
void ShardedModule::watch_first_gradient(ShardedUnit& unit) {
  for (auto group = unit.groups.rbegin(); group != unit.groups.rend(); ++group)
    for (auto param = (*group)->params().rbegin(); param != (*group)->params().rend(); ++param) {
      if (!param->param.requires_grad() || (*group)->whole()) continue;
      param->param.register_hook([link = link_](const Tensor&) {
        if (link->module && link->module->in_backward_) link->module->settle_reduction();
      });
      return;
    }
}

void ShardedModule::after_backward() {
  backward_batchnorm_.reset();
  const bool reduces = sync_ || alone_;
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    auto& each = **group;
    if (armed_ && each.progress.used && !each.progress.reduced) {
      if (!options_.keeps_whole) each.release();
      if (reduces) reduce(each);
    }
  }
  settle_reduction();
  for (const auto& weak : optimizers_)
    if (const auto optimizer = weak.lock()) optimizer->join();
  for (const auto& group : groups_) {
    group->finish_reduce(/*on_host=*/true);
    group->release(options_.keeps_whole);
    if (!reduces || !armed_) group->keep_unreduced();
    group->show_shards();
    group->give_grads();
    group->progress = {};
  }
  residency_->end_pass(Pass::kBackward);
  in_backward_ = false;
  shows_full_ = false;
  if (reduces) changed_ = true;
  if (armed_ && fired_.watching()) fired_.finish();
  armed_ = false;
}

void ShardedModule::backward_failed(const std::exception&) {
  abandon();
}

void ShardedModule::abandon() {
  backward_batchnorm_.reset();
  reducing_ = nullptr;
  for (const auto& weak : optimizers_) try {
      if (const auto optimizer = weak.lock()) optimizer->join();
    } catch (const std::exception&) {  // it follows from what ended the pass, or comes again
    }
  for (const auto& group : groups_) {
    group->abandon();
    group->progress = {};
  }
  residency_->abandon_pass(in_backward_ ? Pass::kBackward : Pass::kForward);
  in_backward_ = false;
  shows_full_ = false;
  armed_ = false;
}

}  // namespace levin::detail
