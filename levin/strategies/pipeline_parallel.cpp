#include "levin/strategies/pipeline_parallel.h"

#include <cmath>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/nn/deferred_init.h"
#include "levin/strategies/float_norm.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/module_states.h"
#include "levin/strategies/pipeline/pipelined_module.h"
#include "levin/strategies/pipeline/reduce.h"
#include "levin/strategies/pipeline/stage_optimizer.h"

namespace levin {

/// One module under the strategy.
class PipelineStrategy::Sync final : public ModuleSync {
 public:
  Sync(PipelineStrategy& owner, torch::nn::Module& module)
      : owner_(owner),
        group_(owner.mesh_->shared_group("pipeline")),
        mapping_(make_pipeline_schedule(owner.options_.schedule, group_->size(), 1, owner.options_.chunks)),
        stages_(plan_stages(module, mapping_.stages(), owner.options_), ranks_of(mapping_), group_->rank()),
        runner_(stages_, *group_),
        reduce_(stages_, *owner.group_, *group_, *owner.mesh_->shared_group("data")) {
    for (const auto& state : stages_.cut().states) states_.emplace(state.tensor.unsafeGetTensorImpl(), &state);
    owner_.syncs_.push_back(this);
  }
  ~Sync() override { std::erase(owner_.syncs_, this); }

  void before_forward() override {
    LEVIN_CHECK(stages_.running(),
                "[pipeline] a module that is cut into stages is run by fabric.forward_backward(module, batch, step), ",
                "not by calling it");
  }
  void after_forward(std::span<Tensor>) override {}
  void before_backward(const Tensor&) override {
    LEVIN_CHECK(false, "[pipeline] fabric.forward_backward has run backward already");
  }
  void after_backward(const std::exception*) override {}
  void set_sync(bool enabled) override { syncs_ = enabled; }

  int microbatches(int64_t rows) override { return owner_.microbatches(rows); }
  Tensor run_microbatches(const MicrobatchStep& step) override {
    const auto count = static_cast<int>(step.rows.size());
    auto& schedule = schedules_[count];
    if (schedule.actions.empty())
      schedule = make_pipeline_schedule(owner_.options_.schedule, group_->size(), count, owner_.options_.chunks);
    if (at::GradMode::is_enabled()) reduce_.begin();
    const auto loss = runner_.run(schedule, step);
    if (syncs_ && at::GradMode::is_enabled()) reduce_.run();
    return loss;
  }

  std::string share_text(std::string text) override {
    return group_->size() == 1 ? text
                               : broadcast_string(*group_, std::move(text), stages_.rank_of(stages_.stages() - 1));
  }

  void set_device(c10::Device device) { stages_.set_device(device); }
  void share_values() { reduce_.share_values(); }
  PipelineRunner& runner() { return runner_; }
  const StageModule& stages() const { return stages_; }
  const StageCut::State* find(const Tensor& tensor) const {
    const auto found = states_.find(tensor.unsafeGetTensorImpl());
    return found == states_.end() ? nullptr : found->second;
  }

 private:
  static std::vector<int> ranks_of(const PipelineSchedule& schedule) {
    std::vector<int> ranks;
    for (int stage = 0; stage < schedule.stages(); ++stage) ranks.push_back(schedule.rank_of(stage));
    return ranks;
  }

  PipelineStrategy& owner_;
  std::shared_ptr<Collective> group_;
  PipelineSchedule mapping_;
  StageModule stages_;
  PipelineRunner runner_;
  detail::StageReduce reduce_;
  std::map<int, PipelineSchedule> schedules_;
  std::unordered_map<const c10::TensorImpl*, const StageCut::State*> states_;
  bool syncs_ = true;
};

PipelineStrategy::PipelineStrategy(PipelineOptions options)
    : Strategy({.name = "pipeline",
                .collective = {.backend = options.process_group_backend, .timeout = options.timeout},
                .places_modules = true}),
      options_(std::move(options)) {
  LEVIN_CHECK(options_.size >= 0, "[pipeline] size ", options_.size, " must be 1 or more, or 0 for all ranks");
  LEVIN_CHECK(options_.microbatches >= 0, "[pipeline] microbatches ", options_.microbatches,
              " must be 1 or more, or 0 to choose");
  pipeline_schedule_traits(options_.schedule);  // an unknown name is said here
}

std::unique_ptr<Strategy> strategy_of(const PipelineOptions& options) {
  return std::make_unique<PipelineStrategy>(options);
}

std::vector<NamedStrategy> PipelineStrategy::names() {
  return {named_strategy("pipeline", PipelineOptions{}), named_strategy("pipeline_2", PipelineOptions{.size = 2}),
          named_strategy("pipeline_4", PipelineOptions{.size = 4}),
          named_strategy("pipeline_8", PipelineOptions{.size = 8})};
}

void PipelineStrategy::on_connect() {
  const int size = options_.size == 0 ? group_->size() : options_.size;
  LEVIN_CHECK(group_->size() % size == 0, "[pipeline] pipelines of ", size, " ranks do not divide ", group_->size(),
              " ranks");
  detail::check_schedule(options_, size);
  mesh_ = std::make_unique<Mesh>(group_, std::vector<std::pair<std::string, int>>{{"pipeline", size}, {"data", -1}});
  shards_ = std::make_unique<TensorShards>(*group_);
  shards_->set_saves_full(true);
}

int PipelineStrategy::microbatches(int64_t rows) const {
  return detail::microbatches_of(options_, pipeline_size(), rows);
}

// What of the module stays here goes to the device; the rest is left where it is, deferred or on the host, until it is
// released.
std::unique_ptr<ModuleSync> PipelineStrategy::setup_module(torch::nn::Module& module) {
  LEVIN_CHECK(!precision_.fp8, "[pipeline] precision \"", precision_.name,
              "\" is not possible with this strategy; use \"bf16-mixed\"");
  const bool deferred = is_deferred(module);
  if (group().size() > 1) {
    const auto parameters = detail::unique_parameters(module);
    const auto buffers = detail::unique_buffers(module);
    detail::check_same_states(name(), *group_, "parameter", parameters);
    detail::check_same_states(name(), *group_, "buffer", buffers);
    if (!deferred && options_.sync_module_states) {
      detail::broadcast_states(*group_, parameters);
      detail::broadcast_states(*group_, buffers);
    }
  }
  auto sync = std::make_unique<Sync>(*this, module);
  const at::NoGradGuard no_grad;
  for (const auto& state : sync->stages().cut().states) {
    auto tensor = state.tensor;
    if (is_deferred(tensor)) materialize(std::span<const Tensor>(&tensor, 1));
    auto to = tensor.options().device(device_);
    if (precision_.params && tensor.is_floating_point()) to = to.dtype(*precision_.params);
    if (to.device() != tensor.device() || to.dtype() != tensor.dtype()) tensor.set_data(tensor.to(to));
    const auto holders = sync->stages().holders(state);
    if (state.is_parameter && static_cast<int>(holders.size()) == pipeline_size()) continue;
    const int writer = state.is_parameter ? holders.front() : sync->stages().rank_of(state.home);
    shards_->add(tensor, {.sizes = state.sizes,
                          .start = 0,
                          .writes = writer == mesh_->coordinate("pipeline") && mesh_->coordinate("data") == 0});
  }
  sync->set_device(device_);
  if (deferred && options_.sync_module_states) sync->share_values();
  return sync;
}

StateLayout PipelineStrategy::layout_over(int ranks) const {
  const int size = options_.size == 0 ? ranks : options_.size;
  LEVIN_CHECK(ranks % size == 0, "[pipeline] pipelines of ", size, " ranks do not divide ", ranks, " ranks");
  StateLayout layout{.ranks = ranks};
  const bool connected = mesh_ && group_->size() == ranks;
  layout.pipeline = {.options = options_,
                     .ranks = size,
                     .rank = connected ? mesh_->coordinate("pipeline") : 0,
                     .copies = ranks / size,
                     .microbatches = [options = options_, size](int64_t rows) {
                       return detail::microbatches_of(options, size, rows);
                     }};
  return layout;
}

PipelineRunner* PipelineStrategy::runner() const {
  return syncs_.empty() ? nullptr : &syncs_.back()->runner();
}

const StageModule* PipelineStrategy::stages() const {
  return syncs_.empty() ? nullptr : &syncs_.back()->stages();
}

// A parameter is whole on the ranks that have it, so any optimizer steps it as one process would; but its state must
// have the shape of the parameter, or it could not be saved.
Optimizer PipelineStrategy::setup_optimizer(Optimizer optimizer) {
  if (pipeline_size() == 1) return optimizer;
  const auto traits = optimizer.traits();
  LEVIN_CHECK(traits && (traits->elementwise || traits->tensor_sums), "[pipeline] ", optimizer.name(),
              traits ? " keeps figures of rows or columns" : " does not say what it keeps",
              ", and each rank has some of the parameters; use AdamW or SGD, or strategy \"ddp\"");
  Optimizer staged(std::make_shared<detail::StageOptimizer>(std::move(optimizer), [this](const Tensor& param) {
    for (const auto* sync : syncs_)
      if (const auto* state = sync->find(param)) return !sync->stages().holds(*state);
    return false;
  }));
  shards_->add_optimizer(staged);
  return staged;
}

Tensor PipelineStrategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  auto total = at::zeros({}, at::device(device()));
  const int place = mesh_->coordinate("pipeline");
  for (const auto& param : params) {
    if (!param.grad().defined() || param.grad().numel() == 0) continue;
    // What several ranks have counts once.
    bool counts = true;
    for (const auto* sync : syncs_)
      if (const auto* state = sync->find(param)) counts = sync->stages().holders(*state).front() == place;
    if (!counts) continue;
    const auto norm = detail::float_norm(param.grad(), norm_type).to(total.device(), at::kFloat);
    if (largest)
      total = at::maximum(total, norm);
    else
      total += norm.pow(norm_type);
  }
  mesh_->group("pipeline").all_reduce(total, largest ? ReduceOp::kMax : ReduceOp::kSum);
  return largest ? total : total.pow(1 / norm_type);
}

}  // namespace levin
