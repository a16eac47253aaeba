#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/core/each_tensor.h"
#include "levin/devices/graphs.h"
#include "levin/optim/optimizer.h"
#include "levin/precision/precision.h"
#include "levin/strategies/module_sync.h"

namespace levin {

struct CompileOptions {
  /// What messages call the step.
  std::string name = "step";
  /// Gradients of one call are added to by the next (accumulation of micro-batches). They keep their memory then, and
  /// zero_grad fills them with zeros. Found out when it is not set, at the price of a capture.
  bool accumulates_gradients = false;
  /// Most graphs that are kept; calls that would need another one run eagerly.
  int64_t max_graphs = 8;
};

namespace detail {

/// Everything besides the values of tensors that a captured step depends on, as numbers.
class StepKey {
 public:
  void add(int64_t number) { numbers_.push_back(number); }
  /// Dtype, device, sizes and strides.
  void add(const Tensor& tensor);
  template <Leaf T>
  void add_value(const T& value) {
    add(static_cast<int64_t>(std::hash<T>()(value)));
  }
  bool operator==(const StepKey&) const = default;

 private:
  std::vector<int64_t> numbers_;
};

/// What a step works on besides its arguments.
struct StepSurroundings {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<std::shared_ptr<OptimizerImpl>> optimizers;
  GradScaler* scaler = nullptr;
  /// What a strategy does around modules. Whoever finds them keeps them alive.
  std::vector<std::shared_ptr<ModuleSync>> syncs = {};
  /// One number of each rank, by rank; none: there is one rank.
  std::function<std::vector<int64_t>(int64_t)> exchange = {};
  /// A text of one rank, on every rank.
  std::function<std::string(const std::string& text, int rank)> share = {};
  /// Called after a replay that communicates was given to the device.
  std::function<void()> on_replayed = {};
  /// Changes when one of the above does, or was loaded.
  int64_t version = 0;
};

/// One call of a step.
struct StepCall {
  std::string_view name = "step";
  /// The tensors of its arguments, all defined.
  std::vector<Tensor*> inputs = {};
  StepKey key = {};
  /// The step itself, on what the inputs are now. What it returns must be detached when it ends.
  std::function<void()> run = {};
  bool accumulates_gradients = false;
  /// The step drops the gradients that it finds before it makes new ones.
  bool drops_gradients = false;
};

struct GraphUnits;

/// A captured step.
struct CompiledGraph {
  explicit CompiledGraph(c10::Device device) : values(device), checks(device) {}

  /// What `run` made, for the caller to keep: its tensors get new values at each replay.
  std::shared_ptr<void> result;

  std::vector<Tensor> inputs;
  RefreshedValues values;
  DeferredChecks checks;
  struct Gradient {
    Tensor param;
    /// Over memory of the graph; undefined: the step leaves none.
    Tensor after;
  };
  /// Of the parameters whose gradients the step replaces.
  std::vector<Gradient> gradients;
  bool keeps_gradients = false;
  /// Parameters that had no gradient before the step, where it may not keep them: it would not add to one.
  std::vector<Tensor> had_none;
  /// The gradients of the parameters before the capture, until the first replay.
  std::vector<Tensor> before;
  std::shared_ptr<DeviceGraph> graph;
  /// For profilers: whose its kernels are. Null where none was there at the capture.
  std::shared_ptr<const GraphUnits> units;
};

/// Runs the calls of steps: the first ones of a kind eagerly, then one that is captured, then replays of it. What
/// cannot be captured runs eagerly, and a line says why. One thread.
///
/// Where ranks communicate in a step they first tell each other, on the host, how far they are with it: a call runs
/// eagerly on all of them, or from graphs on all.
class StepCompiler {
 public:
  /// Calls of a kind that run eagerly before one is captured.
  static constexpr int kWarmUp = 2;

  StepCompiler(std::shared_ptr<GraphDevice> device, std::function<StepSurroundings()> surroundings, int64_t max_graphs);
  ~StepCompiler();
  StepCompiler(const StepCompiler&) = delete;
  StepCompiler& operator=(const StepCompiler&) = delete;

  /// Null: it ran eagerly. Else it was replayed, after it was captured where `run` has been called.
  CompiledGraph* call(StepCall& call);
  /// Forgets all graphs: steps are captured again.
  void drop();
  /// Ends all graphs at once, with the gradients in their memory: the group of ranks ends.
  void abandon() noexcept;
  /// `name` runs eagerly from now on; the line is printed once.
  void refuse(std::string_view name, const std::string& reason);
  /// It need not be called for `name` any more: all ranks know that it runs eagerly.
  bool refuses(std::string_view name) const { return given_up_.contains(name); }

  struct Counts {
    int64_t eager = 0, captured = 0, replayed = 0, dropped = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Entry {
    StepKey key;
    int seen = 0;
    int waited = 0;
    bool refused = false;
    std::unique_ptr<CompiledGraph> graph;
  };
  /// What a rank could do with a call. All do the least of these.
  enum Wish : int64_t { kNever, kEager, kCapture, kReplay };
  struct Watched {
    Tensor tensor;
    const void* data;
  };

  void look_around();
  bool fits() const;
  void watch();
  StepKey full_key(const StepCall& call) const;
  Entry* entry_of(StepKey key);
  void run_eagerly(StepCall& call);
  void replay(StepCall& call, CompiledGraph& graph);
  Wish wish_of(const StepCall& call, Entry*& entry);
  bool ranks_meet() const;
  std::vector<int64_t> exchange(std::string_view name, int64_t number) const;
  void share_reason(std::string_view name, const std::vector<int64_t>& numbers);
  CompiledGraph* call_together(StepCall& call);
  bool try_capture(StepCall& call, Entry& entry);
  void refuse_entry(StepCall& call, Entry& entry, const std::string& reason);
  void give_up(std::string_view name);
  std::string unit_of(const std::exception& error) const;
  void put_back(const std::vector<Tensor>& gradients);
  void record(StepCall& call, CompiledGraph& graph);
  bool keeps(const StepCall& call) const;
  static bool would_lose_gradients(const StepCall& call, const CompiledGraph& graph);
  bool lies_with_strategy(const Tensor& param) const;
  void hold_gradients();
  void free_frozen();
  void attach_gradients();
  std::string why_not(const StepCall& call) const;

  std::shared_ptr<GraphDevice> device_;
  std::function<StepSurroundings()> find_surroundings_;
  int64_t max_graphs_;
  int64_t graphs_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::set<std::string, std::less<>> refused_;
  /// ... on every rank.
  std::set<std::string, std::less<>> given_up_;
  std::map<std::string, int, std::less<>> failures_;
  /// Why the last capture of a step failed here, or it is refused; empty: it may work later.
  std::map<std::string, std::string, std::less<>> reasons_;
  std::set<std::string, std::less<>> accumulating_;
  Counts counts_;

  bool looked_ = false;
  StepSurroundings around_;
  std::vector<std::shared_ptr<torch::nn::Module>> units_;
  std::vector<Tensor> params_;
  std::vector<Watched> watched_;
  std::vector<uint64_t> layouts_;
  /// Parameters that have had a gradient, and the memory of those that stay from call to call.
  std::set<c10::TensorImpl*> had_gradient_;
  std::unordered_map<c10::TensorImpl*, Tensor> held_;
};

/// The first line of an exception that ended a capture, in words for people.
std::string capture_failure(const std::exception& error);

template <class A>
using HeldArgument = std::conditional_t<std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>,
                                        A, std::remove_cvref_t<A>>;

}  // namespace detail

/// A step that `fabric.compile` has made: called as the function it was made from. Numbers, flags and texts among the
/// arguments choose the graph, tensors are copied into it.
template <class F>
class CompiledStep {
 public:
  CompiledStep(F step, std::shared_ptr<detail::StepCompiler> compiler, CompileOptions options)
      : step_(std::move(step)), compiler_(std::move(compiler)), options_(std::move(options)) {}

  template <class... A>
  auto operator()(A&&... args) {
    using Result = std::remove_cvref_t<std::invoke_result_t<F&, A&&...>>;
    if (!compiler_) return Result(step_(std::forward<A>(args)...));
    std::tuple<detail::HeldArgument<A&&>...> held(std::forward<A>(args)...);
    detail::StepCall call{.name = options_.name, .accumulates_gradients = options_.accumulates_gradients};
    std::apply([&](auto&... arg) { (add(call, arg), ...); }, held);
    if constexpr (std::is_void_v<Result>) {
      call.run = [&] { std::apply(step_, held); };
      compiler_->call(call);
    } else {
      std::shared_ptr<Result> result;
      call.run = [&] {
        result = std::make_shared<Result>(std::apply(step_, held));
        each_tensor(*result, [](Tensor& t) {
          if (t.defined()) t = t.detach();
        });
      };
      auto* graph = compiler_->call(call);
      if (!graph) return std::move(*result);
      if (result) graph->result = result;
      Result copy = *std::static_pointer_cast<Result>(graph->result);
      each_tensor(copy, [](Tensor& t) {
        if (t.defined()) t = t.clone();
      });
      return copy;
    }
  }

  /// Null where steps are not compiled.
  const detail::StepCompiler* compiler() const { return compiler_.get(); }

 private:
  template <class T>
  static void add(detail::StepCall& call, T& arg) {
    if constexpr (detail::Leaf<std::remove_cvref_t<T>>) {
      call.key.add_value(arg);
    } else {
      each_tensor(arg, [&](Tensor& t) {
        call.key.add(t);
        if (t.defined()) call.inputs.push_back(&t);
      });
    }
  }

  F step_;
  std::shared_ptr<detail::StepCompiler> compiler_;
  CompileOptions options_;
};

}  // namespace levin
