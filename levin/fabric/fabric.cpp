#include "levin/fabric/fabric.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/compile/device.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/distributed/launcher/launcher.h"
#include "levin/fabric/called_past.h"
#include "levin/fabric/fabric_core.h"
#include "levin/nn/torch_linear.h"
#include "levin/optim/clip.h"
#include "levin/optim/forwarding.h"
#include "levin/optim/in_backward.h"
#include "levin/precision/matmul.h"
#include "levin/strategies/layout.h"

namespace levin {
namespace {

// Steps through the loss scaler: what an optimizer becomes in 16-mixed.
class ScaledOptimizer final : public optim::ForwardingOptimizer {
 public:
  ScaledOptimizer(Optimizer inner, std::shared_ptr<detail::FabricCore> core)
      : ForwardingOptimizer(std::move(inner)), core_(std::move(core)) {}

  void step() override {
    if (core_->scaler->take_skip()) return;
    core_->scaler->step(inner());
    core_->scaler->update();
  }
  std::string prepare_capture() override { return inner().impl()->prepare_capture(); }
  uint64_t layout_version() const override { return inner().impl()->layout_version(); }

 private:
  std::shared_ptr<detail::FabricCore> core_;
};

// Casts by set_data, so that everybody who holds the parameter (an optimizer made before) sees the new data.
void convert(torch::nn::Module& module, std::optional<c10::ScalarType> dtype, std::optional<c10::Device> device) {
  at::NoGradGuard no_grad;
  auto apply = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    auto to = tensor.options();
    if (dtype && tensor.is_floating_point()) to = to.dtype(*dtype);
    if (device) to = to.device(*device);
    if (to.dtype() == tensor.dtype() && to.device() == tensor.device()) return;
    tensor.set_data(tensor.to(to));
    if (tensor.grad().defined()) tensor.mutable_grad().reset();
  };
  for (auto& parameter : module.parameters()) apply(parameter);
  for (auto& buffer : module.buffers()) apply(buffer);
}

}  // namespace

void detail::share_found_inf(GradScaler& scaler, Strategy& strategy) {
  scaler.share_found_inf([&strategy](Tensor& found) {
    if (strategy.shards()) strategy.group().all_reduce(found, ReduceOp::kMax);
  });
}

Fabric::Fabric() : Fabric(FabricOptions{}) {}

Fabric::Fabric(FabricOptions options) : options_(std::move(options)), core_(std::make_shared<detail::FabricCore>()) {
  core_->plan = resolve(options_, levin::detail::cuda_accelerator().device_count());
  core_->accelerator = &levin::accelerator(core_->plan.accelerator);
  if (core_->plan.precision.scales_loss)
    core_->scaler = std::make_unique<GradScaler>(options_.plugins.grad_scaler);
  else if (options_.skip_nonfinite)
    core_->scaler = std::make_unique<GradScaler>(GradScaler::that_skips());
  core_->plan.precision.scales_loss = core_->scaler != nullptr;  // strategies go by it
}

Fabric::~Fabric() {
  // An exception is on its way out of the run: the other ranks need not wait for this one. Its line is printed by
  // whoever catches it.
  if (core_->launched && std::uncaught_exceptions() > exceptions_at_start_)
    report_failure(core_->strategy->group(), "an exception ended it");
}

void Fabric::launch(const Args& args) {
  launch_with(&args);
}

void Fabric::launch(int argc, char** argv) {
  const Args args(argc, argv);
  launch_with(&args);
}

void Fabric::launch() {
  launch_with(nullptr);
}

void Fabric::launch_with(const Args* args) {
  auto& core = *core_;
  if (core.launched) return;
  auto& plan = core.plan;
  const auto environment = detect_environment(options_.plugins.cluster_environment);
  const bool external = environment->creates_processes_externally();
  const int devices = static_cast<int>(plan.devices.size());
  if (!external && plan.world_size() > 1) {
    LEVIN_CHECK(args, "[fabric.launch] ", plan.world_size(), " processes are asked for (devices ", devices,
                " x num_nodes ", plan.num_nodes,
                ") and nothing has started them; pass launch(argc, argv), or start the program with `levin run "
                "--nproc-per-node ",
                devices, "`");
    std::fflush(nullptr);
    auto place = environment->placement({devices, plan.num_nodes});
    std::exit(launch_self(args->values(), place));
  }
  // Devices that the user did not name are as many as the launcher has started.
  const WorldAsked asked =
      plan.devices_asked ? WorldAsked{devices, plan.num_nodes} : WorldAsked{0, plan.num_nodes > 1 ? plan.num_nodes : 0};
  core.placement = environment->placement(asked);
  set_log_rank(core.placement.global_rank);
  const auto type = plan.devices.front().type();
  if (!plan.devices_asked) {
    plan.num_nodes = std::max(1, core.placement.world_size / std::max(1, core.placement.local_world_size));
    while (type == c10::DeviceType::CPU && static_cast<int>(plan.devices.size()) < core.placement.local_world_size)
      plan.devices.emplace_back(type);
  }
  LEVIN_CHECK(core.placement.local_rank < static_cast<int>(plan.devices.size()), "[fabric.launch] local rank ",
              core.placement.local_rank, " has no device: this node has ", plan.devices.size());
  const auto device = plan.devices[core.placement.local_rank];
  core.accelerator->set_device(device);
  if (plan.precision.fp8 && device.is_cuda()) {
    const auto info = core.accelerator->info(device);
    LEVIN_CHECK(info.has_fp8, "[fabric.launch] precision \"", plan.precision.name,
                "\" needs a GPU of compute capability 8.9 or higher, which ", info.name, " is not; use \"bf16-mixed\"");
  }
  core.strategy = make_strategy(plan.strategy, core.placement.world_size);
  core.strategy->connect(join_group(core.placement, device, core.strategy->traits().collective), device);
  core.strategy->set_precision(plan.precision);
  core.strategy->set_captured(options_.compile && device.is_cuda() && core.strategy->why_not_captured().empty());
  if (core.scaler && core.placement.world_size > 1) detail::share_found_inf(*core.scaler, *core.strategy);
  core.launched = true;
  detail::watch_torch_calls(core_);
  if (!plan.precision.params) hint_idle_tensor_cores(device);
}

std::shared_ptr<detail::ModuleCall> Fabric::setup_call(std::shared_ptr<torch::nn::Module> module,
                                                       SetupOptions options) {
  LEVIN_CHECK(module, "[fabric.setup] the module is empty");
  LEVIN_CHECK(core_->launched || core_->plan.world_size() == 1, "[fabric.setup] ", core_->plan.world_size(),
              " processes are asked for; call fabric.launch(args) before setup");
  if (!core_->launched) launch_with(nullptr);
  auto& core = *core_;
  const auto& precision = core.plan.precision;
  if (!core.strategy->traits().places_modules) {
    if (is_deferred(*module)) materialize(*module);
    convert(*module, precision.params, options.move_to_device ? std::optional(device()) : std::nullopt);
  }

  auto call = std::make_shared<detail::ModuleCall>();
  call->core = core_;
  call->precision = precision;
  call->device = device().type();
  if (precision.fp8)  // reads the sizes of parameters before they are sharded
    call->fp8 = std::make_shared<kernels::Fp8Layers>(
        module, kernels::Fp8Setup{.options = *precision.fp8,
                                  .device = device(),
                                  .casts_weights_again = core.strategy->layout().plan_groups != nullptr});
  if (precision.autocast && device().is_cuda() && core.strategy->layout().plan_groups == nullptr)
    call->weight_casts = std::make_unique<kernels::WeightCasts>();
  call->sync = core.strategy->setup_module(*module);
  for (const auto& parameter : module->parameters()) {
    if (!parameter.is_floating_point()) continue;
    call->witness = parameter;
    call->witness_dtype = parameter.scalar_type();
    break;
  }
  call->module = std::move(module);
  call->guards_backward = call->sync || core.scaler;
  call->plain = !call->sync && !precision.params && !precision.autocast;
  for (auto* known : {&core.calls, &core.wrapped}) std::erase_if(*known, [](const auto& one) { return one.expired(); });
  core.calls.push_back(call);
  if (!call->plain) core.wrapped.push_back(call);
  if (precision.autocast || device().is_cuda()) nn::hint_at_torch_linear(*call->module);
  if (call->sync && core.strategy->shards() && core.placement.world_size > 1 && !core.shape_note)
    core.shape_note = std::make_unique<ShapeErrorNote>(
        "under strategy \"" + core.strategy->name() +
        "\" parameters are shards outside of the module that setup returned: call net(x), not net->forward(x)");
  ++core.version;
  return call;
}

Optimizer Fabric::setup_optimizer(Optimizer optimizer) {
  LEVIN_CHECK(optimizer, "[fabric.setup] the optimizer is empty");
  for (const auto& known : core_->optimizers)
    LEVIN_CHECK(known.lock() != optimizer.impl(), "[fabric.setup] this optimizer (", optimizer.name(),
                ") was set up already");
  if (!core_->launched) {
    LEVIN_CHECK(core_->plan.world_size() == 1, "[fabric.setup_optimizers] call fabric.launch(args) before");
    launch_with(nullptr);
  }
  LEVIN_CHECK(
      (core_->placement.world_size <= 1 && !core_->strategy->shards()) || !optim::detail::steps_in_backward(optimizer),
      "[fabric.setup] OptimizerInBackward steps by the gradients of one rank, before strategy \"",
      core_->strategy->name(), "\" averages or shards them; give ", optimizer.name(),
      " itself, with optimizer_in_backward = true of FsdpOptions, ZeroOptions or GeminiOptions");
  core_->optimizers.push_back(optimizer.impl());
  ++core_->version;
  const auto* of_torch = optim::adapted(*optimizer.impl());
  optimizer = core_->strategy->setup_optimizer(optimizer);
  if (core_->scaler) {
    optimizer = Optimizer(std::make_shared<ScaledOptimizer>(std::move(optimizer), core_));
    core_->optimizers.push_back(optimizer.impl());
  }
  auto& of_torch_all = core_->torch_optimizers;
  std::erase_if(of_torch_all, [&](const auto& known) { return known.first == of_torch || known.second.expired(); });
  if (of_torch) of_torch_all.emplace_back(of_torch, optimizer.impl());
  return optimizer;
}

void Fabric::backward(const Tensor& loss, const BackwardOptions& options) {
  auto& core = *core_;
  LEVIN_CHECK(loss.defined(), "[fabric.backward] the loss is an empty tensor");
  LEVIN_CHECK(loss.requires_grad(),
              "[fabric.backward] the loss needs no gradient: it was computed without grad, detached, or "
              "from a module whose parameters are all frozen");
  if (core.wrapped.empty() && !core.scaler) [[likely]]
    return loss.backward(options.gradient, options.retain_graph, options.create_graph);

  std::vector<std::shared_ptr<detail::ModuleCall>> armed, idle;
  std::vector<ModuleSync*> syncs;
  for (const auto& weak : core.wrapped)
    if (auto call = weak.lock()) {
      const bool takes_part = call->armed();
      if (takes_part && call->sync) syncs.push_back(call->sync.get());
      (takes_part ? armed : idle).push_back(std::move(call));
    }
  if (!idle.empty()) detail::check_called(loss, idle, armed);
  const Tensor scaled = core.scaler ? core.scaler->scale(loss) : loss;
  LEVIN_CHECK(!options.create_graph || syncs.empty(), "[fabric.backward] create_graph is not possible with strategy \"",
              core.strategy->name(),
              "\": gradients are averaged over the ranks or sharded over them, and no graph leads through that; use "
              "torch::autograd::grad with create_graph for the part of the loss that needs it, and "
              "fabric.backward(loss) for the sum");
  struct Inside {
    std::atomic<int>& depth;
    explicit Inside(std::atomic<int>& d) : depth(d) { ++depth; }
    ~Inside() { --depth; }
  } inside(core.in_backward);
  if (!syncs.empty()) core.strategy->group().note_doing("backward");
  core.retains_graph = options.retain_graph;
  run_backward(syncs, scaled, [&] { scaled.backward(options.gradient, options.retain_graph, options.create_graph); });
  if (!options.retain_graph)
    for (const auto& call : armed) call->handed_out_leaf = false;
}

void Fabric::unscale_gradients(Optimizer& optimizer) {
  if (!core_->scaler) return;
  auto* scaled = dynamic_cast<ScaledOptimizer*>(optimizer.impl().get());
  LEVIN_CHECK(scaled, "[fabric.clip_gradients] this optimizer was not set up with this Fabric");
  core_->scaler->unscale(scaled->inner());
}

Tensor Fabric::clip_gradients(Optimizer& optimizer, const ClipOptions& options) {
  LEVIN_CHECK(options.clip_val.has_value() != options.max_norm.has_value(),
              "[fabric.clip_gradients] give exactly one of clip_val and max_norm");
  unscale_gradients(optimizer);
  const auto params = optimizer.all_params();
  if (options.clip_val) {
    optim::clip_grad_value(params, *options.clip_val);
    return {};
  }
  const auto norm = core_->strategy->grad_norm(params, options.norm_type);
  if (options.error_if_nonfinite && detail::is_capturing())
    detail::current_step()->checks->add(
        norm.isfinite().logical_not(),
        "[fabric.clip_gradients] the norm of the gradients was non-finite in an earlier "
        "step; look for inf or nan in the loss, or pass error_if_nonfinite = false");
  else
    LEVIN_CHECK(!options.error_if_nonfinite || norm.isfinite().item<bool>(),
                "[fabric.clip_gradients] the norm of the gradients is non-finite (", norm.item<double>(),
                "); look for inf or nan in the loss, or pass error_if_nonfinite = false");
  optim::clip_grads_with_norm(params, *options.max_norm, norm);
  return norm;
}

std::shared_ptr<detail::StepCompiler> Fabric::step_compiler(const CompileOptions& options) {
  if (!options_.compile) return nullptr;
  auto& core = *core_;
  if (!core.launched && core.plan.world_size() == 1) launch_with(nullptr);
  LEVIN_CHECK(core.launched, "[fabric.compile] call fabric.launch(args) before");
  if (!device().is_cuda()) {
    warn_once(detail::concat("[compile] steps are not captured on ", device().type(), ": CUDA graphs need a GPU"));
    return nullptr;
  }
  if (const auto reason = core.strategy->why_not_captured(); !reason.empty()) {
    warn_once(detail::concat("[compile] steps run eagerly under strategy \"", core.strategy->name(), "\": ", reason));
    return nullptr;
  }
  if (!core.graphs) {
    if (options_.compile.fuses())
      core.graphs = compile::fused_graphs(detail::cuda_graphs(device()), detail::cuda_graphs(device()));
    else
      core.graphs = detail::cuda_graphs(device());
  }
  const auto around = [weak = std::weak_ptr(core_)] {
    detail::StepSurroundings found;
    const auto owner = weak.lock();
    if (!owner) return found;
    for (const auto& call : owner->calls)
      if (const auto alive = call.lock()) {
        found.modules.push_back(alive->module);
        if (alive->sync) found.syncs.emplace_back(alive, alive->sync.get());
      }
    for (const auto& optimizer : owner->optimizers)
      if (auto alive = optimizer.lock()) found.optimizers.push_back(std::move(alive));
    found.scaler = owner->scaler.get();
    found.version = owner->version;
    if (auto& group = owner->strategy->group(); group.failures()) {
      found.exchange = [&group](int64_t number) { return group.exchange("compiled step", number); };
      found.share = [&group](const std::string& text, int rank) { return levin::broadcast_string(group, text, rank); };
      found.on_replayed = [&group, device = owner->strategy->device()] {
        const auto done = std::make_shared<c10::Event>(device.type());
        done->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
        group.watch_work([done] { return done->query(); });
      };
    }
    return found;
  };
  auto compiler = std::make_shared<detail::StepCompiler>(core.graphs, around, options.max_graphs);
  std::erase_if(core.compilers, [](const auto& known) { return known.expired(); });
  core.compilers.push_back(compiler);
  if (core.compilers.size() == 1)
    core.strategy->group().set_before_abort([weak = std::weak_ptr(core_), own = std::this_thread::get_id()] {
      // Whoever ends the group from another thread lets this one continue, which then comes here.
      const auto owner = weak.lock();
      if (!owner || std::this_thread::get_id() != own) return;
      for (const auto& each : owner->compilers)
        if (const auto alive = each.lock()) alive->abandon();
    });
  return compiler;
}

std::unique_ptr<Autocast> Fabric::autocast() const {
  const auto& precision = core_->plan.precision;
  return precision.autocast ? std::make_unique<Autocast>(device().type(), *precision.autocast) : nullptr;
}

std::unique_ptr<InitScope> Fabric::init_tensor() const {
  return std::make_unique<InitScope>(init_options({}));
}

InitOptions Fabric::init_options(InitModuleOptions options) const {
  return {
      .device = device(), .dtype = core_->plan.precision.params, .empty = options.empty_init, .deferred = options.meta};
}

void Fabric::note_loader_kept(bool asked, detail::KeptLoader kind) const {
  if (!asked || world_size() == 1) return;
  LEVIN_CHECK(
      kind != detail::KeptLoader::stateful_torch,
      "[fabric.setup_dataloaders] the dataset of this torch data loader decides itself what comes next, and would "
      "give the same to every one of ",
      world_size(),
      " ranks; give a ChunkDataset a torch::data::samplers::DistributedRandomSampler(chunks, "
      "fabric.world_size(), fabric.global_rank()) as its chunk sampler; where a dataset of your own takes its "
      "part by fabric.global_rank(), pass {.use_distributed_sampler = false}");
  LEVIN_CHECK(kind != detail::KeptLoader::torch,
              "[fabric.setup_dataloaders] torch's data loader would give all of its batches to every one of ",
              world_size(),
              " ranks; write levin::make_loader(dataset, {.batch_size = ..., .shuffle = true}) for it, give it a "
              "torch::data::samplers::DistributedRandomSampler(size, fabric.world_size(), fabric.global_rank()), or "
              "pass {.use_distributed_sampler = false}");
  warn_once(
      "[fabric.setup_dataloaders] this loader is not a levin::DataLoader, so its sampler stays: every rank sees all "
      "of its batches");
}

detail::LoaderNote Fabric::loader_note() const {
  if (!core_->launched || core_->placement.world_size == 1) return {};
  return {core_, core_->loaders++};
}

void detail::LoaderNote::tell(int64_t batch, std::optional<int64_t> batches, bool ended) const {
  const auto core = core_.lock();
  if (!core || !core->launched) return;
  const auto name = number_ == 0 ? std::string("dataloader") : concat("dataloader ", number_);
  core->strategy->group().note_place(ended     ? concat("its ", name, " ended after ", batch, " batches")
                                     : batches ? concat("batch ", batch, " of ", *batches, " of its ", name)
                                               : concat("batch ", batch, " of its ", name));
}

void Fabric::begin_join(detail::ModuleCall& call, const JoinOptions& options) {
  if (world_size() == 1 || !call.sync) return;
  auto* uneven = call.sync->uneven_inputs();
  LEVIN_CHECK(uneven, "[fabric.join_uneven_inputs] strategy \"", core_->strategy->name(),
              "\" needs as many steps on every rank; \"ddp\" can do without");
  uneven->begin(options.divide_by_initial_world_size);
}

void Fabric::end_join(detail::ModuleCall& call) {
  if (world_size() > 1 && call.sync) call.sync->uneven_inputs()->end();
}

void Fabric::print_line(const std::string& line) const {
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

Logger& Fabric::logger() const {
  LEVIN_CHECK(!options_.loggers.empty(), "[fabric.logger] no logger was given: Fabric({.loggers = {...}})");
  return *options_.loggers.front();
}

void Fabric::log(std::string_view name, const Tensor& value, std::optional<int64_t> step) {
  log_dict({{std::string(name), value}}, step);
}
void Fabric::log(std::string_view name, double value, std::optional<int64_t> step) {
  log_dict({{std::string(name), value}}, step);
}

void Fabric::log_dict(const Metrics& metrics, std::optional<int64_t> step) {
  if (!is_global_zero()) return;
  for (const auto& logger : options_.loggers) logger->log_metrics(metrics, step);
}

c10::Device Fabric::device() const {
  return core_->launched ? core_->strategy->device() : core_->plan.devices.front();
}
int Fabric::global_rank() const {
  return core_->placement.global_rank;
}
int Fabric::local_rank() const {
  return core_->placement.local_rank;
}

int Fabric::local_world_size() const {
  return std::max(core_->placement.local_world_size, 1);
}
int Fabric::node_rank() const {
  return core_->placement.node_rank;
}
DataPlace Fabric::data_place() const {
  return core_->launched ? core_->strategy->data_place() : DataPlace{0, world_size()};
}

int Fabric::world_size() const {
  return core_->launched ? core_->placement.world_size : core_->plan.world_size();
}
const Accelerator& Fabric::accelerator() const {
  return *core_->accelerator;
}
const FabricPlan& Fabric::plan() const {
  return core_->plan;
}
GradScaler* Fabric::grad_scaler() const {
  return core_->scaler.get();
}

Strategy& Fabric::strategy() const {
  LEVIN_CHECK(core_->launched, "[fabric.strategy] call fabric.launch(args) first");
  return *core_->strategy;
}

NoSync::NoSync(detail::ModuleCall* call) : call_(call && call->sync ? call : nullptr) {
  if (call_) call_->sync->set_sync(false);
}

NoSync::~NoSync() {
  if (call_) call_->sync->set_sync(true);
}

}  // namespace levin
