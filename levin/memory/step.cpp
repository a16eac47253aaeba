#include "levin/memory/step.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include "levin/core/error.h"
#include "levin/devices/product_operators.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/memory/autocast.h"
#include "levin/memory/kernels.h"
#include "levin/memory/made_step.h"
#include "levin/memory/promotion.h"
#include "levin/memory/shapes/shapes.h"
#include "levin/memory/staged_step.h"
#include "levin/memory/widths.h"
#include "levin/nn/checkpointing/after_recompute.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/failed_unit.h"
#include "levin/nn/forward_dtype.h"
#include "levin/nn/tie.h"
#include "levin/nn/unit.h"
#include "levin/strategies/sharding/owned_params.h"

namespace levin::detail {
namespace {

Tensor without_data(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).pinned_memory({}));
}

Tensor cast_floating_to(const Tensor& tensor, std::optional<c10::ScalarType> dtype) {
  if (!dtype || !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == *dtype) return tensor;
  return tensor.to(*dtype);
}

/// Tensors that forward makes itself are born without memory too, in the dtype of the parameters.
struct MakesMeta {
  explicit MakesMeta(const PrecisionPlan& plan) : scope({.device = c10::Device(at::kMeta)}) {
    if (!plan.params || plan.autocast) return;
    before = set_forward_dtype(*plan.params);
  }
  ~MakesMeta() {
    if (before) set_forward_dtype(*before);
  }
  InitScope scope;
  std::optional<c10::ScalarType> before;
};

/// Tells of products that torch computes on this thread while it lives. One at a time.
class TorchProducts {
 public:
  explicit TorchProducts(std::function<void()> found) {
    tell() = std::move(found);
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(see).scopes({at::RecordScope::FUNCTION}));
  }
  ~TorchProducts() {
    at::removeCallback(handle_);
    tell() = nullptr;
  }
  TorchProducts(const TorchProducts&) = delete;
  TorchProducts& operator=(const TorchProducts&) = delete;

 private:
  static std::function<void()>& tell() {
    thread_local std::function<void()> here;
    return here;
  }
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    if (!name.starts_with("aten::")) return nullptr;
    const auto* product = find_product_operator(name);
    if (product && product->kind == ProductKind::kMatmul) tell()();
    return nullptr;
  }

  at::CallbackHandle handle_;
};

/// Units of other stages are skipped outside of it.
constexpr auto kInsideStage = static_cast<Order>(static_cast<int>(Order::kStage) + 10);

/// Runs a checkpointed unit again as it ran in forward, and finds out what it keeps.
struct AroundCheckpointed : Interceptor {
  void around(Call& call) override {
    if (call.phase() == Phase::kForward) {
      call.each_input([&](Tensor& input) { keeps(input); });
      return call.proceed();
    }
    std::optional<MetaAutocast> autocast;
    if (dtype) autocast.emplace(device, *dtype);
    call.proceed();
  }
  bool sees_result() const override { return false; }
  std::function<void(const Tensor&)> keeps;
  c10::DeviceType device = c10::kCPU;
  std::optional<c10::ScalarType> dtype;
};

/// Gradients of weights that are computed apart, as a strategy that gathers and reduces unit by unit sees them.
struct WeightWatch final : ModuleSync {
  void before_forward() override {}
  void after_forward(std::span<Tensor>) override {}
  void before_backward(const Tensor&) override {}
  void after_backward(const std::exception*) override {}
  void set_sync(bool) override {}
  int weight_part(const Tensor& weight) const override {
    const auto found = unit_of.find(weight.unsafeGetTensorImpl());
    return found == unit_of.end() ? -1 : found->second;
  }
  void enter_weights(int part) override {
    if (part >= 0) mark(part, true);
  }
  void leave_weights(int part) override { mark(part, false); }

  /// Of the parameters of units.
  std::unordered_map<const c10::TensorImpl*, int> unit_of;
  std::function<void(int unit, bool begins)> mark;
};

class Tracer {
 public:
  Tracer(const MemoryQuestion& question, const PrecisionPlan& plan)
      : question_(question),
        plan_(plan),
        kernels_(question.device),
        meter_(question.device == c10::kCUDA ? Rounding::kCuda : Rounding::kNone) {
    if (question.device == c10::kCPU) promotion_.emplace();
  }

  /// Of the step that runs; null before it is made.
  const torch::nn::Module* module() const { return step_.module.get(); }

  StepTrace run(const MakeTrainingStep& make, const Batch& given) {
    step_ = make_without_data(make, plan_.params);
    step_.module->train();
    for (const auto& param : unique_parameters(*step_.module)) trace_.num_parameters += param.numel();
    if (question_.layout && question_.layout->split_module) question_.layout->split_module(*step_.module);
    if (plan_.fp8)
      fp8_ = std::make_shared<kernels::Fp8Layers>(
          step_.module, kernels::Fp8Setup{.options = *plan_.fp8,
                                          .device = c10::Device(at::kMeta),
                                          .casts_weights_again = question_.layout && question_.layout->plan_groups});
    for (const auto& [name, tensor] : given) batch_.set(name, tensor.defined() ? without_data(tensor) : tensor);
    for (const auto& [name, tensor] : batch_) own(tensor, StepTrace::Kind::kInput, -1);
    cut();
    find_params();
    checkpoint();
    UnitWatch watch(
        units_,
        [this](StepPart part, size_t unit, bool begins) {
          if (!in_weights_) mark(part, static_cast<int>(unit), begins);
        },
        staged_ ? kInsideStage : Order::kProfiler);
    const TorchProducts products([this] {
      const bool backward = !trace_.marks.empty() && trace_.marks.back().part == StepPart::kBackward;
      (backward ? trace_.torch_products_in_backward : trace_.torch_products_in_forward) = true;
    });
    for (int pass = 0; pass < question_.accumulate; ++pass) {
      trace_.marks.clear();
      if (staged_) {
        run_stages(watch, /*reduces=*/pass + 1 == question_.accumulate);
        continue;
      }
      const MakesMeta scope(plan_);
      mark(StepPart::kForward, -1, true);
      auto loss = forward(batch_);
      note_saved();
      mark(StepPart::kBackward, -1, true);
      loss.backward();
      watch.end_backward();
    }
    own_gradients();
    trace_.backward_end = meter_.events().size();
    mark(StepPart::kOptimizer, -1, true);
    mark(StepPart::kOptimizer, -1, false);
    trace_.events = meter_.events();
    trace_.owners.resize(static_cast<size_t>(meter_.storages()));
    return std::move(trace_);
  }

 private:
  void mark(StepPart part, int unit, bool begins) {
    trace_.marks.push_back({meter_.events().size(), part, unit, begins});
  }

  StepTrace::Owner* owner(const Tensor& tensor) {
    const auto id = meter_.id_of(tensor);
    if (id < 0) return nullptr;
    const auto at = static_cast<size_t>(id);
    if (trace_.owners.size() <= at) trace_.owners.resize(at + 1);
    return &trace_.owners[at];
  }
  void own(const Tensor& tensor, StepTrace::Kind kind, int of) {
    if (auto* found = owner(tensor)) found->kind = kind, found->of = of;
  }

  /// Leaves this rank's stages of a module that is cut.
  void cut() {
    const auto& pipeline = question_.layout ? question_.layout->pipeline : std::nullopt;
    if (!pipeline || pipeline->ranks == 1) return;
    LEVIN_CHECK(!plan_.fp8, "[estimate_memory] precision \"", plan_.name,
                "\" is not possible with stages; use \"bf16-mixed\"");
    // One rank that casts parameters reduces gradients in every backward.
    const auto& layout = *question_.layout;
    is_sharded_ = is_sharded(layout, resolve_precision(question_.precision, question_.device));
    takes_gradients_ = is_sharded_ && layout.ranks * layout.replicas == 1;
    staged_ = std::make_unique<StagedStep>(*step_.module, *pipeline, batch_, [this](const Batch& part) {
      const MakesMeta scope(plan_);
      return forward(part);
    });
  }

  void run_stages(UnitWatch& watch, bool reduces) {
    const auto& layout = *question_.layout;
    int to_come = staged_->backwards();
    for (auto& each : trace_.owners) each.saved = false;
    const auto around = [&](const PipelineAction& action, const std::function<void()>& compute) {
      // The first stage has no input: all of its backward is that of weights.
      if (action.kind == PipelineAction::Kind::kBackwardInput && action.stage == 0) {
        --to_come;
        return compute();
      }
      const bool forwards = action.kind == PipelineAction::Kind::kForward;
      const auto part = forwards ? StepPart::kForward : StepPart::kBackward;
      mark(part, -1, true);
      if (!forwards) trace_.marks.back().reduces = --to_come == 0 && reduces;
      if (forwards) {
        compute();
        note_saved(/*keeps=*/true);
      } else {
        const MakesMeta scope(plan_);
        const auto first = meter_.storages();
        compute();
        watch.end_backward();
        in_weights_ = false;
        if (takes_gradients_) take_gradients(first);
      }
      mark(part, -1, false);
    };
    WeightWatch weights;
    if (is_sharded_) {
      for (size_t i = 0; i < params_.size(); ++i)
        if (const auto unit = trace_.params[i].unit; unit < static_cast<int>(units_.size()))
          weights.unit_of.emplace(params_[i].unsafeGetTensorImpl(), unit);
      // Units whose hooks are met on the way are not those whose turn it is.
      weights.mark = [this](int unit, bool begins) {
        in_weights_ = true;
        mark(StepPart::kBackward, unit, begins);
      };
      staged_->set_owner_of_weights(weights);
    }
    // Shards of gradients are summed over stages later than the full ones here.
    const bool alone = !layout.plan_groups || layout.ranks * layout.replicas == 1;
    staged_->run(around, reduces && alone);
  }

  void own_gradients() {
    for (size_t i = 0; i < params_.size(); ++i)
      if (const auto& grad = params_[i].grad(); grad.defined())
        own(grad, StepTrace::Kind::kGradient, static_cast<int>(i));
  }

  /// Gradients that a forward has computed (of a fused loss, with smaller ids) are among what it has saved.
  void take_gradients(int32_t first) {
    for (size_t i = 0; i < params_.size(); ++i) {
      auto& grad = params_[i].mutable_grad();
      if (grad.defined() && meter_.id_of(grad) >= first) own(grad, StepTrace::Kind::kGradient, static_cast<int>(i));
      grad.reset();
    }
  }

  void find_params() {
    auto& module = *step_.module;
    units_ = question_.units ? select_units(module, *question_.units) : repeated_units(module);
    for (const auto& unit : units_) trace_.units.push_back(unit.name);
    const bool has_experts = question_.layout && question_.layout->expert_ranks;
    for (const auto& [name, param, unit] : owned_params(module, units_)) {
      if (staged_ && param.numel() == 0) continue;  // of another stage
      params_.push_back(param);
      LEVIN_CHECK(param.is_meta(), "[estimate_memory] a parameter of shape ", param.sizes(), " was made on ",
                  param.device(), "; make the whole model inside the function, and load its weights elsewhere");
      trace_.params.push_back({param.sizes().vec(), param.numel(), static_cast<int64_t>(param.element_size()),
                               static_cast<int>(unit), param.requires_grad(),
                               has_experts ? question_.layout->expert_ranks(param) : 0});
      own(param, StepTrace::Kind::kParameter, -1);
    }
    for (const auto& buffer : module.buffers()) {
      if (!buffer.defined()) continue;
      own(buffer, StepTrace::Kind::kParameter, -1);
      trace_.buffers += round_allocation(static_cast<int64_t>(buffer.nbytes()),
                                         question_.device == c10::kCUDA ? Rounding::kCuda : Rounding::kNone);
    }
  }

  void checkpoint() {
    if (!question_.checkpointing && !question_.checkpoint_blocks) return;
    auto& module = *step_.module;
    const auto policy = question_.checkpointing.value_or(
        UnitPolicy("the blocks that repeat", [](torch::nn::Module& root) { return repeated_units(root); }));
    // Random numbers have no part in this.
    attachments_ = attach_checkpointing(module, policy, {.preserve_rng_state = false});
    for (const auto& chosen : select_units(module, policy)) {
      auto around = std::make_shared<AroundCheckpointed>();
      around->device = question_.device;
      around->dtype = plan_.autocast;
      const auto at = std::find(trace_.units.begin(), trace_.units.end(), chosen.name) - trace_.units.begin();
      const int unit = at < static_cast<std::ptrdiff_t>(trace_.units.size()) ? static_cast<int>(at) : -1;
      around->keeps = [this, unit](const Tensor& input) {
        if (auto* found = owner(input); found && found->kind == StepTrace::Kind::kOther)
          found->kind = StepTrace::Kind::kUnitInput, found->of = unit;
      };
      auto recomputed = std::make_shared<AfterRecompute>([this, unit] {
        trace_.marks.push_back({meter_.events().size(), StepPart::kBackward, unit, false, /*recomputed=*/true});
      });
      attachments_.push_back(chosen.unit->attach(std::move(recomputed), Order::kRecompute));
      attachments_.push_back(chosen.unit->attach(std::move(around), Order::kRecompute));
    }
  }

  Tensor forward(const Batch& batch) {
    ForwardOutput output;
    {
      Batch cast;
      for (const auto& [name, tensor] : batch) cast.set(name, cast_floating_to(tensor, plan_.inputs));
      std::optional<MetaAutocast> autocast;
      if (plan_.autocast) autocast.emplace(question_.device, *plan_.autocast);
      const kernels::Fp8Scope fp8(fp8_);
      output = step_.forward(cast);
    }
    if (plan_.outputs) output.each_tensor_in([&](Tensor& each) { each = cast_floating_to(each, plan_.outputs); });
    return step_.loss(output, batch);
  }

  /// What lives now, and was not there before, is kept for backward. `keeps`: so is what was before.
  void note_saved(bool keeps = false) {
    const auto& events = meter_.events();
    trace_.owners.resize(static_cast<size_t>(meter_.storages()));
    std::vector<bool> lives(trace_.owners.size());
    for (const auto& event : events) lives[static_cast<size_t>(event.id)] = event.bytes > 0;
    for (size_t id = 0; id < lives.size(); ++id)
      trace_.owners[id].saved = lives[id] || (keeps && trace_.owners[id].saved);
  }

  const MemoryQuestion& question_;
  const PrecisionPlan& plan_;
  MetaKernels kernels_;
  MetaMeter meter_;
  std::optional<MetaPromotion> promotion_;
  TrainingStep step_;
  std::shared_ptr<kernels::Fp8Layers> fp8_;
  Batch batch_;
  std::vector<SelectedUnit> units_;
  std::vector<Attachment> attachments_;
  std::vector<Tensor> params_;
  std::unique_ptr<StagedStep> staged_;
  bool is_sharded_ = false, takes_gradients_ = false;
  /// Gradients of weights are computed apart: unit by unit, as the strategy does it.
  bool in_weights_ = false;
  StepTrace trace_;
};

/// "aten::foo" and what is wrong with it, for what torch throws when a step cannot run without data.
std::string without_data_error(const c10::Error& error) {
  if (dynamic_cast<const UnknownShapeError*>(&error)) return concat("the step uses ", first_line(error));
  const auto text = first_line(error);
  if (const auto colon = text.find(": attempted to run this operator with Meta tensors"); colon != text.npos)
    return concat(
        "the step uses ", text.substr(0, colon),
        ", which has no shape function; write it with other operators, or leave it out of the estimated step");
  if (text.find("Cannot copy out of meta tensor") != text.npos)
    return "the step copies values to another device, or reads them (cpu(), lengths as tensors, a print); leave that "
           "out "
           "of the estimated step";
  return concat("the step does not run on shapes alone: ", text);
}

}  // namespace

StepTrace trace_step(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& question,
                     const PrecisionPlan& plan) {
  Tracer tracer(question, plan);
  try {
    return tracer.run(make, batch);
  } catch (const c10::Error& error) {
    const auto unit = failed_unit(error, tracer.module());
    detail::fail(concat("[estimate_memory] ", without_data_error(error), unit.empty() ? "" : concat(" (", unit, ")")));
  }
}

}  // namespace levin::detail
