#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/state.h"
#include "levin/core/main.h"
#include "levin/core/seed.h"
#include "levin/devices/accelerator.h"
#include "levin/fabric/compiled_step.h"
#include "levin/fabric/fabric_loader.h"
#include "levin/fabric/fabric_module.h"
#include "levin/fabric/fp8_state.h"
#include "levin/fabric/generators.h"
#include "levin/fabric/microbatches.h"
#include "levin/fabric/options.h"
#include "levin/fabric/torch_calls.h"
#include "levin/nn/deferred_init.h"
#include "levin/optim/torch/adapter.h"
#include "levin/profilers/profile.h"

namespace levin {

struct SetupOptions {
  /// Move the module to this rank's device.
  bool move_to_device = true;
};

struct LoaderSetup {
  /// Give each rank its own fraction of the data.
  bool use_distributed_sampler = true;
  /// Move batches to this rank's device.
  bool move_to_device = true;
};

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
  /// The gradient of a loss that is not a scalar.
  Tensor gradient = {};
};

/// Exactly one of the first two.
struct ClipOptions {
  /// Clamp each element of the gradients to [-clip_val, clip_val].
  std::optional<double> clip_val = {};
  /// Scale all gradients together so that their norm is at most this.
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
  bool error_if_nonfinite = true;
};

struct JoinOptions {
  /// Gradients are divided by the number of all ranks, also where some have made their last step; else by the number of
  /// those that have not.
  bool divide_by_initial_world_size = true;
};

struct InitModuleOptions {
  /// Do not run the initializers: for models whose weights are loaded next.
  bool empty_init = false;
  /// Allocate nothing; `fabric.setup` makes and initializes the parameters, unit by unit.
  bool meta = false;
};

namespace detail {
/// Of which there is none.
struct NoOption {
  NoOption() = delete;
};
}  // namespace detail

/// Gradients stay on this rank while it lives: for all but the last batch of an accumulation.
class NoSync {
 public:
  explicit NoSync(detail::ModuleCall* call);
  ~NoSync();
  NoSync(NoSync&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  detail::ModuleCall* call_;
};

/// Your own training loop on any number of devices, in any precision, by changing an option.
///
///     levin::Fabric fabric({.devices = 4, .precision = "bf16-mixed"});
///     fabric.launch(args);
///     auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
///     auto loader = fabric.setup_dataloaders(train_loader);
///     for (auto& batch : loader) {
///       auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
///       fabric.backward(loss);
///       opt.step();
///       opt.zero_grad();
///     }
class Fabric {
 public:
  Fabric();
  explicit Fabric(FabricOptions options);
  /// `Fabric({})`: nothing is asked for.
  explicit Fabric(std::initializer_list<detail::NoOption>) : Fabric() {}
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// Starts the other local ranks (by running this program again) when `devices` asks for several and nobody has
  /// started them, and joins them. The process that starts them does not return from here: it watches the ranks and
  /// exits with their status. Every rank must call, before anything is set up. With one device it may be left out.
  void launch(const Args& args);
  void launch(int argc, char** argv);
  /// Joins what something else has started, or stays single. Starts nothing and installs no signal handler.
  void launch();

  /// Moves a module to its device, converts it to the run's precision, hands it to the strategy; optimizers with it.
  /// Takes holders (torch's, Levin's), `std::shared_ptr<Net>` and Sequential; Levin's and torch's optimizers.
  /// Returns the module to call, or a tuple of it and the optimizers to step. Every rank must call.
  template <class M, class... O>
  [[nodiscard]] auto setup(const M& module, O&&... optimizers) {
    if constexpr (std::derived_from<M, torch::nn::Module>) {
      static_assert(!std::derived_from<M, torch::nn::Module>,
                    "levin: setup takes a module holder or a std::shared_ptr, not the module itself: make it with "
                    "std::make_shared<Net>(...) or LEVIN_MODULE(Net)");
    } else if constexpr (IsFabricModule<M>::value) {
      static_assert(!IsFabricModule<M>::value,
                    "levin: this module was set up already; pass the module that setup was given");
    } else if constexpr (!detail::ModuleHandle<M>) {
      static_assert(detail::ModuleHandle<M>,
                    "levin: the first argument of setup must be a module: a holder made with TORCH_MODULE or "
                    "LEVIN_MODULE, or a std::shared_ptr to a torch::nn::Module");
    } else {
      constexpr bool optimizers_fit = (IsOptimizer<std::remove_cvref_t<O>>::value && ...);
      static_assert(optimizers_fit,
                    "levin: after the module, setup takes optimizers (levin::optim::... or torch::optim::...)");
      if constexpr (optimizers_fit) {
        auto wrapped = setup_module(module);
        if constexpr (sizeof...(O) == 0)
          return wrapped;
        else
          return std::tuple{std::move(wrapped), setup_optimizer(as_optimizer(std::forward<O>(optimizers)))...};
      }
    }
  }

  template <detail::ModuleHandle M>
  [[nodiscard]] FabricModule<M> setup_module(const M& module, SetupOptions options = {}) {
    return FabricModule<M>(module, setup_call(detail::module_ptr(module), options));
  }

  /// Optimizers of modules that were set up; one gives an Optimizer, several a tuple.
  template <class... O>
  [[nodiscard]] auto setup_optimizers(O&&... optimizers) {
    static_assert(sizeof...(O) > 0, "levin: setup_optimizers needs at least one optimizer");
    static_assert((IsOptimizer<std::remove_cvref_t<O>>::value && ...),
                  "levin: setup_optimizers takes levin::optim::... or torch::optim::... optimizers");
    if constexpr (sizeof...(O) == 1)
      return (setup_optimizer(as_optimizer(std::forward<O>(optimizers))), ...);
    else
      return std::tuple{setup_optimizer(as_optimizer(std::forward<O>(optimizers)))...};
  }

  /// A loader whose batches arrive on this rank's device, each rank with its own fraction of the data. Takes Levin's
  /// loaders and anything else with begin() and end() (torch's data loaders, a vector of batches), of any batch type;
  /// of those every rank sees all batches, which is said; torch's data loaders are refused with several ranks, unless
  /// their sampler is a distributed one. An lvalue that is not a Levin loader must outlive the result.
  template <class L>
  [[nodiscard]] auto setup_dataloaders(L&& loader, LoaderSetup options = {}) {
    using T = std::remove_cvref_t<L>;
    const auto target = options.move_to_device ? device() : c10::Device(c10::kCPU);
    if constexpr (requires(T & l) { l.distributed(0, 1); }) {
      const auto place = data_place();
      auto own =
          options.use_distributed_sampler && place.size > 1 ? loader.distributed(place.rank, place.size) : T(loader);
      // A loader of ours brings the batches to the device itself, ahead of their use.
      own = own.placed({.device = target, .local_ranks = local_world_size(), .fixed_size = world_size() > 1});
      return FabricLoader<T>(std::make_shared<T>(std::move(own)), c10::Device(c10::kCPU), loader_note());
    } else {
      if constexpr (!detail::kSplitsOverRanks<T>)
        note_loader_kept(options.use_distributed_sampler, detail::kept_loader<T>());
      if constexpr (std::is_lvalue_reference_v<L>)
        return FabricLoader<std::remove_reference_t<L>*>(std::make_shared<std::remove_reference_t<L>*>(&loader), target,
                                                         loader_note());
      else
        return FabricLoader<T>(std::make_shared<T>(std::move(loader)), target, loader_note());
    }
  }
  template <class A, class B, class... More>
  requires(!std::same_as<std::remove_cvref_t<B>, LoaderSetup>)
      [[nodiscard]] auto setup_dataloaders(A&& a, B&& b, More&&... more) {
    return std::tuple{setup_dataloaders(std::forward<A>(a)), setup_dataloaders(std::forward<B>(b)),
                      setup_dataloaders(std::forward<More>(more))...};
  }

  /// Gradients of a loss, in the run's precision (scaled where it must be), reduced over the ranks.
  void backward(const Tensor& loss, const BackwardOptions& options = {});
  template <class T>
  requires(!std::convertible_to<T, const Tensor&>) void backward(const T&, const BackwardOptions& = {}) {
    static_assert(sizeof(T) == 0, "levin: backward takes the loss as a tensor; loss.item() has no graph behind it");
  }

  /// Forward and backward of a step over a batch, in one call. Returns the loss without its graph. `step(batch)`
  /// returns the loss of a batch, as a mean over its rows. Under a strategy that computes a batch in micro-batches
  /// ("pipeline") it is called with each of them, and what it gives is the mean of their losses, the same on every rank
  /// of a pipeline; under every other one it is called once, and backward follows. Where gradients are disabled there
  /// is no backward. The loop is then the same under every strategy:
  ///
  ///     for (auto& batch : loader) {
  ///       auto loss = fabric.forward_backward(net, batch, [&](auto& part) { return loss_of(net(part["x"]), part["y"]);
  ///       }); opt.step(); opt.zero_grad();
  ///     }
  template <class M, class B, class F>
  Tensor forward_backward(const M& module, B& batch, F&& step) {
    static_assert(IsFabricModule<M>::value, "levin: forward_backward takes the module that setup returned");
    auto& call = module.setup_call();
    const auto rows = detail::rows_of_batch(batch);
    const int parts = microbatches(call, rows);
    if (parts == 0) {
      const Tensor loss = step(batch);
      if (at::GradMode::is_enabled()) backward(loss);
      return loss.detach();
    }
    const auto counts = detail::rows_of_parts(rows, parts);
    auto micro = detail::split_rows<std::remove_const_t<B>>(batch, counts);
    MicrobatchStep work{.rows = counts, .shapes = {}, .forward = {}, .scale = {}};
    for (const auto& part : micro) work.shapes.push_back(detail::shapes_of(part));
    work.forward = [&](size_t part) -> Tensor { return step(micro[part]); };
    return run_microbatches(call, std::move(work));
  }
  /// The same in two parts, for steps that forward_backward does not fit: in how many micro-batches a batch of that
  /// many rows is computed (0: it is not), and their run.
  int microbatches(detail::ModuleCall& call, int64_t rows) const;
  Tensor run_microbatches(detail::ModuleCall& call, MicrobatchStep step);

  /// Clips the gradients of an optimizer, unscaled first. Returns the norm before clipping for max_norm, else an empty
  /// tensor.
  Tensor clip_gradients(Optimizer& optimizer, const ClipOptions& options);
  template <class M>
  Tensor clip_gradients(const FabricModule<M>&, Optimizer& optimizer, const ClipOptions& options) {
    return clip_gradients(optimizer, options);
  }

  /// Divides the gradients of an optimizer by the loss scale, once per step; nothing in precisions without a scaler.
  void unscale_gradients(Optimizer& optimizer);

  /// A training or evaluation step that is captured in a CUDA graph when the options say `compile`, and replayed. Each
  /// kind of call (shapes, flags) runs eagerly twice before. What cannot be captured runs eagerly, and a line says why;
  /// docs/compile.md has the rules for what stands in a step. Without `compile`, and on the CPU, it is the function
  /// itself.
  ///
  ///     auto step = fabric.compile([&](levin::Batch& batch) {
  ///       auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
  ///       fabric.backward(loss);
  ///       opt.step();
  ///       opt.zero_grad();
  ///       return loss;
  ///     });
  ///     for (auto& batch : loader) step(batch);
  template <class F>
  [[nodiscard]] auto compile(F step, CompileOptions options = {}) {
    auto compiler = step_compiler(options);
    return CompiledStep<F>(std::move(step), std::move(compiler), std::move(options));
  }
  /// Null where steps are not compiled.
  std::shared_ptr<detail::StepCompiler> step_compiler(const CompileOptions& options);

  /// The run's precision for code outside of a module's forward; put back when the result dies.
  [[nodiscard]] std::unique_ptr<Autocast> autocast() const;

  /// A copy of a value with its tensors on this rank's device; a module is moved itself.
  template <class T>
  T to_device(T value) const {
    if constexpr (detail::ModuleHandle<T>)
      detail::module_ptr(value)->to(device());
    else
      each_tensor(value, [this](Tensor& t) {
        if (t.defined()) t = t.to(device(), /*non_blocking=*/true);
      });
    return value;
  }

  /// One line on stdout, from local rank 0 of each node only.
  template <class... Args>
  void print(const Args&... args) const {
    if (local_rank() == 0) print_line(detail::concat(args...));
  }

  /// Every rank must call. The name appears in the message when a rank does not come.
  void barrier(std::string_view name = "barrier");

  /// The value of rank `src`, on every rank. Tensors may differ in shape between ranks before.
  template <class T>
  T broadcast(T value, int src = 0) {
    if constexpr (std::same_as<T, std::string>) {
      return broadcast_text(std::move(value), src);
    } else if constexpr (std::is_arithmetic_v<T>) {
      const auto tensor =
          broadcast_tensor(at::scalar_tensor(value, std::floating_point<T> ? at::kDouble : at::kLong), src);
      return static_cast<T>(std::floating_point<T> ? tensor.template item<double>() : tensor.template item<int64_t>());
    } else {
      each_tensor(value, [&](Tensor& t) { t = broadcast_tensor(t, src); });
      return value;
    }
  }

  struct GatherOptions {
    /// Let gradients flow back to the ranks the parts came from.
    bool sync_grads = false;
  };
  /// Every tensor with the ranks' values side by side: a new leading dimension of world_size.
  template <class T>
  T all_gather(T value) {
    return all_gather(std::move(value), GatherOptions());
  }
  template <class T>
  T all_gather(T value, GatherOptions options) {
    if constexpr (std::is_arithmetic_v<T>)
      static_assert(!std::is_arithmetic_v<T>, "levin: all_gather takes tensors; wrap the number: at::scalar_tensor(x)");
    else
      each_tensor(value, [&](Tensor& t) { t = gather_tensor(t, options.sync_grads); });
    return value;
  }

  /// Every tensor reduced over the ranks, in place: "mean", "sum", "min", "max", "prod".
  template <class T>
  T all_reduce(T value, std::string_view reduce_op = "mean") {
    each_tensor(value, [&](Tensor& t) { reduce_tensor(t, reduce_op); });
    return value;
  }

  /// Runs `f` on rank 0 first (`local`: on each node's local rank 0), then on the others: for downloads. Returns what f
  /// does. The others wait as long as f takes, whatever the timeout of the strategy.
  template <std::invocable F>
  auto rank_zero_first(F&& f, bool local = false) {
    const bool first = local ? local_rank() == 0 : global_rank() == 0;
    if (!first) wait_for_first();
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      f();
      if (first) wait_for_first();
    } else {
      auto result = f();
      if (first) wait_for_first();
      return result;
    }
  }

  /// While the result lives, backward only accumulates locally. It must cover forward and backward of the batch.
  template <class M>
  [[nodiscard]] NoSync no_backward_sync(const M& module, bool enabled = true) {
    static_assert(IsFabricModule<M>::value, "levin: no_backward_sync takes the module that setup returned");
    if constexpr (IsFabricModule<M>::value)
      return NoSync(enabled ? &module.setup_call() : nullptr);
    else
      return NoSync(nullptr);
  }

  /// Runs a loop over batches in which ranks may make different numbers of steps, as torch's `with model.join():`. A
  /// rank whose loop has ended takes part in the reductions of the others with zeros, and waits until all have ended;
  /// then all have the parameters of one that made the most steps. Strategy "ddp"; another one with several ranks is an
  /// Error. In the loop, beside forward and backward of the module, there must be no collective. Every rank must call.
  ///
  ///     fabric.join_uneven_inputs(net, [&] { for (auto& batch : loader) { ... } });
  template <class M, std::invocable F>
  void join_uneven_inputs(const M& module, F&& loop, JoinOptions options = {}) {
    static_assert(IsFabricModule<M>::value, "levin: join_uneven_inputs takes the module that setup returned");
    auto& call = module.setup_call();
    begin_join(call, options);
    loop();
    end_join(call);
  }

  /// While the result lives, new tensors are made on this rank's device, in the run's dtype.
  [[nodiscard]] std::unique_ptr<InitScope> init_tensor() const;

  /// Runs a function that makes a module, so that the parameters are born on this rank's device in the run's dtype.
  ///
  ///     auto model = fabric.init_module([] { return Net(784, 10); });
  template <class F>
  auto init_module(F&& make, InitModuleOptions options = {}) const {
    constexpr bool is_function = !detail::ModuleHandle<std::remove_cvref_t<F>>;
    static_assert(
        is_function,
        "levin: init_module takes a function that makes the module: fabric.init_module([] { return Net(...); })");
    if constexpr (is_function) return levin::init_module(std::forward<F>(make), init_options(options));
  }

  /// By name of the state ("model"): keeps only the entries that the function says yes to.
  using Filter = std::map<std::string, StateFilter>;
  /// Writes a checkpoint folder: modules, optimizers and whatever else the state binds. Every rank must call.
  void save(const std::string& path, const State& state, const Filter& filter = {});
  /// The same in other words: `fabric.save("run/whole", state, {.full = true})` writes what a single process would,
  /// whatever the strategy has sharded. World size and shards are this Fabric's own.
  void save(const std::string& path, const State& state, const SaveOptions& options);
  /// The same for a tree of values.
  template <std::same_as<StateDict> D>
  void save(const std::string& path, const D& state, const SaveOptions& options = {}) {
    save_tree(path, state, options);
  }
  /// Restores what the state binds, in place, and returns what else the checkpoint holds. Every rank must call.
  StateDict load(const std::string& path, const State& state, LoadOptions options = {});
  /// Everything in the checkpoint.
  StateDict load(const std::string& path);
  /// Weights from elsewhere (a weight file, a folder with one, a checkpoint) into one module or optimizer.
  void load_raw(const std::string& path, const StateRef& target, const RawOptions& options = {});
  /// The random generators of all ranks, for a State; `own` are generators of the program. The result must outlive the
  /// State.
  [[nodiscard]] Generators generators(std::vector<at::Generator> own = {});
  /// How this Fabric stores checkpoints; null: Levin's own format.
  const CheckpointFormat* checkpoint_format() const { return options_.plugins.checkpoint_format.get(); }

  /// A profile of the loop that follows, which knows this run's ranks, device and the units of the modules that were
  /// set up: call start(), step() after each batch, and stop().
  ///
  ///     auto profile = fabric.profile({.dirpath = "runs/profile", .record_shapes = true});
  [[nodiscard]] std::unique_ptr<profilers::Profile> profile(PyTorchProfilerOptions options = {}) const;
  /// What traces tell of this run.
  ProfiledRun profiled_run() const;

  /// Calls a method on every callback that has it: `fabric.call(&MyCallback::on_epoch_end, epoch)`.
  template <class M, class C, class... Args>
  void call(M C::*method, Args&&... args) {
    static_assert(std::derived_from<C, CallbackBase>, "levin: callbacks derive from levin::CallbackBase");
    for (const auto& callback : options_.callbacks)
      if (auto* c = dynamic_cast<C*>(callback.get())) std::invoke(method, *c, args...);
  }

  /// To every logger, from rank 0. Without a step the loggers count.
  void log(std::string_view name, const Tensor& value, std::optional<int64_t> step = {});
  void log(std::string_view name, double value, std::optional<int64_t> step = {});
  void log_dict(const Metrics& metrics, std::optional<int64_t> step = {});
  const std::vector<std::shared_ptr<Logger>>& loggers() const { return options_.loggers; }
  /// The first logger; an Error when there is none.
  Logger& logger() const;

  static int64_t seed_everything(std::optional<int64_t> seed = {}, SeedOptions options = {}) {
    return levin::seed_everything(seed, options);
  }

  c10::Device device() const;
  int global_rank() const;
  int local_rank() const;
  /// Ranks on this machine.
  int local_world_size() const;
  int node_rank() const;
  int world_size() const;
  /// Which part of the data this rank sees: its own, or that of the ranks with which it has one model.
  DataPlace data_place() const;
  bool is_global_zero() const { return global_rank() == 0; }
  Strategy& strategy() const;
  const Accelerator& accelerator() const;
  const FabricPlan& plan() const;
  /// The loss scaler of 16-mixed; null in other precisions.
  GradScaler* grad_scaler() const;
  /// What fp8-mixed has seen, and makes its scales from. `save` and `load` take care of it; it is for those who write a
  /// tree of their own.
  detail::Fp8State fp8_state() const { return detail::Fp8State(core_); }

 private:
  template <class T>
  struct IsFabricModule : std::false_type {};
  template <class M>
  struct IsFabricModule<FabricModule<M>> : std::true_type {};
  template <class T>
  struct IsOptimizer
      : std::bool_constant<std::derived_from<T, Optimizer> || std::derived_from<T, torch::optim::Optimizer> ||
                           std::convertible_to<T, std::shared_ptr<torch::optim::Optimizer>>> {};
  template <class O>
  static Optimizer as_optimizer(O&& optimizer) {
    using T = std::remove_cvref_t<O>;
    if constexpr (std::derived_from<T, Optimizer>) {
      return optimizer;
    } else if constexpr (std::derived_from<T, torch::optim::Optimizer>) {
      return optim::adapt(std::forward<O>(optimizer));
    } else if constexpr (std::convertible_to<O&&, std::shared_ptr<torch::optim::Optimizer>>) {
      return optim::adapt(std::shared_ptr<torch::optim::Optimizer>(std::forward<O>(optimizer)));
    } else {  // a std::unique_ptr that stays the caller's
      if (!optimizer) return optim::adapt(std::shared_ptr<torch::optim::Optimizer>());
      return optim::adapt(*optimizer);
    }
  }

  void wait_for_first();
  void launch_with(const Args* args);
  void save_tree(const std::string& path, const StateDict& state, const SaveOptions& options);
  void save_with(SaveOptions options, const std::function<void(const SaveOptions&)>& write);
  std::shared_ptr<detail::ModuleCall> setup_call(std::shared_ptr<torch::nn::Module> module, SetupOptions options);
  Optimizer setup_optimizer(Optimizer optimizer);
  void note_loader_kept(bool asked, detail::KeptLoader kind) const;
  detail::LoaderNote loader_note() const;
  void begin_join(detail::ModuleCall& call, const JoinOptions& options);
  void end_join(detail::ModuleCall& call);
  InitOptions init_options(InitModuleOptions options) const;
  void print_line(const std::string& line) const;
  std::string broadcast_text(std::string text, int src);
  Tensor broadcast_tensor(const Tensor& tensor, int src);
  Tensor gather_tensor(const Tensor& tensor, bool sync_grads);
  void reduce_tensor(Tensor& tensor, std::string_view op);

  FabricOptions options_;
  std::shared_ptr<detail::FabricCore> core_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace levin
