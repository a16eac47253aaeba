#include "levin/compile/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/compile/memory.h"
#include "levin/compile/optimize.h"
#include "levin/compile/run.h"
#include "levin/compile/trace.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"

namespace levin::compile {
namespace {

using levin::one_line;
using levin::detail::concat;
using levin::detail::DeviceGraph;
using levin::detail::GraphDevice;

/// What LEVIN_COMPILE says: "print" shows graphs; "time" shows how long steps take before and after.
bool wants(std::string_view word) {
  const auto* said = std::getenv("LEVIN_COMPILE");
  return said && std::string_view(said).find(word) != std::string_view::npos;
}

Tensor bytes_of(const GraphStorage& storage) {
  return tensor_over(storage.memory, View{.dtype = at::kByte, .sizes = {storage.bytes}, .strides = {1}});
}

void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// What a step changes, for running it again: memory that enters and is written, and the place of random generators.
class StepState {
 public:
  StepState(const Graph& graph, c10::Device device) : graph_(graph), device_(device) {
    const at::NoGradGuard no_grad;
    for (size_t s = 0; s < graph.storages.size(); ++s)
      if (graph.storages[s].enters && graph.storages[s].leaves)
        before_.emplace_back(s, bytes_of(graph.storages[s]).clone());
    generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
    if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
    for (const auto& generator : generators_) states_.push_back(generator.get_state());
  }
  void restore() const {
    const at::NoGradGuard no_grad;
    for (const auto& [s, bytes] : before_) bytes_of(graph_.storages[s]).copy_(bytes);
    restore_generators();
  }
  void restore_generators() const {
    for (size_t i = 0; i < generators_.size(); ++i) {
      auto generator = generators_[i];
      generator.set_state(states_[i]);
    }
  }
  /// Of a storage, null where it is made by the step.
  const Tensor* before(size_t s) const {
    for (const auto& [place, bytes] : before_)
      if (place == s) return &bytes;
    return nullptr;
  }

 private:
  const Graph& graph_;
  c10::Device device_;
  std::vector<std::pair<size_t, Tensor>> before_;
  std::vector<at::Generator> generators_;
  std::vector<Tensor> states_;
};

/// What is there after a step: of each storage that leaves its last views.
struct Outcome {
  struct Part {
    View view;
    Tensor value, before;
    std::string writer;
  };
  std::vector<Part> parts;
};

Outcome outcome_of(const Graph& graph, const StepState* state) {
  const at::NoGradGuard no_grad;
  Outcome outcome;
  std::vector<std::vector<std::pair<View, const Node*>>> last(graph.storages.size());
  for (const auto& node : graph.nodes)
    for (const auto& view : node.writes) {
      if (!graph.storages[static_cast<size_t>(view.storage)].leaves) continue;
      auto& list = last[static_cast<size_t>(view.storage)];
      std::erase_if(list, [&](const auto& known) { return known.first.same_place(view); });
      list.emplace_back(view, &node);
    }
  for (size_t s = 0; s < last.size(); ++s)
    for (const auto& [view, node] : last[s]) {
      const auto* before = state ? state->before(s) : nullptr;
      outcome.parts.push_back({.view = view,
                               .value = tensor_over(graph.storages[s].memory, view).clone(),
                               .before = before ? tensor_over(before->storage(), view) : Tensor(),
                               .writer = node->name()});
    }
  return outcome;
}

/// How far two outcomes may be apart, of what the step changed, in norm: a single element may be noise, a wrong mask or
/// scale is not.
struct Tolerance {
  Tolerance(const Graph& graph, bool bits) : to_the_bit(bits) {
    for (const auto& node : graph.nodes) {
      for (const auto& view : node.writes) is_narrow = is_narrow || at::isReducedFloatingType(view.dtype);
      for (const auto& view : node.reads)
        if (graph.storages[static_cast<size_t>(view.storage)].enters && view.version == 0) ++readers[view.storage];
    }
  }
  /// A parameter under an optimizer that divides gradients by their size: where a gradient is noise (the bias of keys),
  /// so is the step, as large as any. The averages beside it show whether the gradient is right.
  bool may_be_noise(const View& view, const std::string& writer) const {
    const auto found = readers.find(view.storage);
    if (found == readers.end() || found->second < 2) return false;
    for (const char* word : {"adam", "addcdiv", "lamb", "lion", "adagrad", "rmsprop"})
      if (writer.find(word) != std::string::npos) return true;
    return false;
  }
  double of_change(at::ScalarType dtype) const { return is_narrow ? 0.15 : dtype == at::kDouble ? 1e-6 : 5e-3; }
  static double of_value(at::ScalarType dtype) {
    return at::isReducedFloatingType(dtype) ? 8e-3 : dtype == at::kDouble ? 1e-12 : 1e-6;
  }

  bool to_the_bit, is_narrow = false;
  std::map<StorageId, int> readers;
};

/// Empty where they agree, else what does not.
std::string difference(const Outcome& a, const Outcome& b, const Tolerance& tolerance) {
  const at::NoGradGuard no_grad;
  struct Measured {
    std::string what;
    double error, change, size, elements;
    at::ScalarType dtype;
    bool may_be_noise;
  };
  std::vector<Measured> all;
  double largest = 0;
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const auto &x = a.parts[i], &y = b.parts[i];
    if (x.value.numel() == 0) continue;
    auto what = concat("what ", x.writer, " writes (", x.view.dtype, " ", at::IntArrayRef(x.view.sizes), ")");
    if (tolerance.to_the_bit || !at::isFloatingType(x.view.dtype)) {
      if (!at::isFloatingType(x.view.dtype)) {
        if (!at::equal(x.value, y.value)) return what + " differs";
        continue;
      }
      if (!at::equal(x.value.isnan(), y.value.isnan())) return what + " has other NaN";
      if (!at::equal(x.value.nan_to_num(), y.value.nan_to_num())) return what + " differs";
      continue;
    }
    const auto p = x.value.to(at::kDouble), q = y.value.to(at::kDouble);
    // Where one is no number the other must be the same.
    const auto odd = p.isfinite().logical_not();
    if (!at::equal(odd, q.isfinite().logical_not())) return what + " is finite in one of the two only";
    const auto change = x.before.defined() ? at::sub(p, x.before.to(at::kDouble)) : p;
    const auto norm = [&](const Tensor& t) { return t.masked_fill(odd, 0).norm().item<double>(); };
    all.push_back({.what = std::move(what),
                   .error = norm(at::sub(p, q)),
                   .change = norm(change),
                   .size = norm(p),
                   .elements = static_cast<double>(p.numel()),
                   .dtype = x.view.dtype,
                   .may_be_noise = x.before.defined() && tolerance.may_be_noise(x.view, x.writer)});
    if (x.before.defined() && !all.back().may_be_noise)
      largest = std::max(largest, all.back().change / std::sqrt(all.back().elements));
  }
  for (const auto& part : all) {
    const double share = part.may_be_noise ? 1.3 : tolerance.of_change(part.dtype);
    const double limit = share * part.change + tolerance.of_value(part.dtype) * part.size +
                         0.01 * share * largest * std::sqrt(part.elements) + 1e-12;
    if (!(part.error <= limit))
      return concat(part.what, " is off by ", part.error / std::max(part.change, 1e-300), " of its change");
  }
  return {};
}

/// A list of calls as a graph: on the CPU a replay runs them.
class ListGraph final : public DeviceGraph {
 public:
  explicit ListGraph(Graph graph) : program(std::move(graph)) {}
  void replay() override { program.run(); }
  Program program;
};

/// Memory that decided what the graph is: nobody may write it.
struct Guard {
  c10::VariableVersion counter;
  uint32_t version;
};
std::vector<Guard> guards_of(const Graph& graph) {
  std::vector<Guard> guards;
  for (const auto storage : graph.decided_by)
    if (const auto& counter = graph.storages[static_cast<size_t>(storage)].counter)
      guards.push_back({*counter, counter->current_version()});
  return guards;
}

/// A step in two forms, until the first replay has shown which is to be used.
class FusedGraph final : public DeviceGraph {
 public:
  FusedGraph(std::shared_ptr<DeviceGraph> plain, std::shared_ptr<DeviceGraph> fused, Graph graph,
             std::shared_ptr<GraphDevice> device, bool to_the_bit)
      : plain_(std::move(plain)),
        fused_(std::move(fused)),
        graph_(std::move(graph)),
        memory_(std::move(device)),
        device_(memory_->device()),
        to_the_bit_(to_the_bit) {}

  void replay() override {
    if (plain_ && fused_) return prove();
    (fused_ ? fused_ : plain_)->replay();
  }
  void destroy() override {
    if (plain_) plain_->destroy();
    if (fused_) fused_->destroy();
  }
  std::string why_unfit() const override { return unfit_; }
  bool is_outdated() const override {
    return std::ranges::any_of(guards,
                               [](const Guard& guard) { return guard.counter.current_version() != guard.version; });
  }

  std::vector<Guard> guards;

  /// What a replay must give where it is known: on the CPU the step has run.
  std::optional<Outcome> expected;

 private:
  double time(DeviceGraph& graph) const {
    wait_for(device_);
    const auto begin = std::chrono::steady_clock::now();
    graph.replay();
    wait_for(device_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  /// One step, whatever comes of the comparison.
  void prove() {
    std::optional<StepState> state;
    try {
      state.emplace(graph_, device_);
      compare(*state);
    } catch (const levin::Interrupted&) {
      throw;
    } catch (const std::exception& error) {  // no memory for a second state
      levin::log_warning(concat("[compile] the fused step is not used: it could not be checked: ", one_line(error)));
      fused_.reset();
      if (state) state->restore();
      plain_->replay();
    }
    graph_.nodes.clear();
  }

  void compare(const StepState& state) {
    double slow = time(*plain_);
    auto right = outcome_of(graph_, &state);
    if (expected) {
      if (auto wrong = difference(*expected, right, Tolerance(graph_, /*bits=*/true)); !wrong.empty()) {
        unfit_ = concat("it does something past the dispatcher: ", wrong, " when it is run again");
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < expected->parts.size(); ++i)
          tensor_over(graph_.storages[static_cast<size_t>(right.parts[i].view.storage)].memory, right.parts[i].view)
              .copy_(expected->parts[i].value);
        fused_.reset();
        return;
      }
      expected.reset();
    }
    state.restore();
    double fast = time(*fused_);
    const auto wrong = difference(right, outcome_of(graph_, &state), Tolerance(graph_, to_the_bit_));
    right.parts.clear();
    for (int i = 0; i < 3 && wrong.empty(); ++i) {
      state.restore();
      slow = std::min(slow, time(*plain_));
      state.restore();
      fast = std::min(fast, time(*fused_));
    }
    if (wants("time") || wants("print"))
      levin::log_info(concat("[compile] a step takes ", slow * 1e3, " ms, fused ", fast * 1e3, " ms"));
    if (wrong.empty() && fast <= slow) {
      plain_.reset();
      memory_->empty_cache();
      return;
    }
    if (!wrong.empty()) levin::log_warning(concat("[compile] the fused step is not used: ", wrong));
    state.restore();
    plain_->replay();
    fused_.reset();
  }

  std::shared_ptr<DeviceGraph> plain_, fused_;
  Graph graph_;
  std::shared_ptr<GraphDevice> memory_;
  c10::Device device_;
  bool to_the_bit_;
  std::string unfit_;
};

class FusedGraphs : public GraphDevice {
 public:
  FusedGraphs(std::shared_ptr<GraphDevice> plain, std::shared_ptr<GraphDevice> device, Optimize optimize)
      : plain_(std::move(plain)), device_(std::move(device)), optimize_(std::move(optimize)) {}

  c10::Device device() const override { return device_->device(); }
  std::optional<c10::Stream> stream() const override { return device_->stream(); }
  int64_t captured_nodes() const override { return plain_->captured_nodes(); }
  std::vector<bool> captured_kernels() const override { return {}; }
  void upload(const Tensor& to, const void* host, size_t bytes) override { device_->upload(to, host, bytes); }
  Tensor alias(const Tensor& tensor, std::shared_ptr<DeviceGraph> graph) override {
    return device_->alias(tensor, std::move(graph));
  }
  void empty_cache() override { device_->empty_cache(); }
  bool captures(const std::optional<c10::Stream>& work) const override { return device_->captures(work); }
  void set_inputs(const std::vector<Tensor>& inputs) override { inputs_ = inputs; }

  std::shared_ptr<DeviceGraph> capture(const std::function<void()>& body) override {
    TracedStep traced;
    auto plain = plain_->capture([&] { traced = trace(body, {.work = [this] { return plain_->captured_nodes(); }}); });
    if (!traced.reason.empty()) {
      levin::warn_once(concat("[compile] a step is captured as it is: ", traced.reason));
      return plain;
    }
    try {
      auto graph = traced.graph;
      improve(graph);
      const bool to_the_bit = keeps_bits(graph);
      auto guards = guards_of(graph);
      auto program = std::make_shared<Program>(std::move(graph));
      // Workspaces of libraries would lie in the pool of the first capture.
      device_->empty_cache();
      auto fused = device_->capture([&] { program->run(); });
      // The addresses of the graph's tables are those of the program's calls.
      auto both = std::make_shared<FusedGraph>(std::move(plain), std::make_shared<Holding>(std::move(fused), program),
                                               std::move(traced.graph), device_, to_the_bit);
      both->guards = std::move(guards);
      return both;
    } catch (const std::exception& error) {
      levin::warn_once(concat("[compile] a step is captured as it is: ", error.what()));
      return plain;
    }
  }

 protected:
  /// The program holds what its kernels are made of.
  class Holding final : public DeviceGraph {
   public:
    Holding(std::shared_ptr<DeviceGraph> graph, std::shared_ptr<Program> program)
        : graph_(std::move(graph)), program_(std::move(program)) {}
    void replay() override { graph_->replay(); }
    void destroy() override { graph_->destroy(); }

   private:
    std::shared_ptr<DeviceGraph> graph_;
    std::shared_ptr<Program> program_;
  };

  void improve(Graph& graph) {
    if (wants("print")) std::cerr << "[compile] the step:\n" << graph.print();
    std::vector<std::string> lines;
    if (optimize_) {
      lines = optimize_(graph);
    } else {
      std::set<StorageId> changing;
      for (size_t s = 0; s < graph.storages.size(); ++s)
        for (const auto& input : inputs_)
          if (graph.storages[s].enters &&
              graph.storages[s].memory.unsafeGetStorageImpl() == input.storage().unsafeGetStorageImpl())
            changing.insert(static_cast<StorageId>(s));
      lines = optimize(graph, changing);
    }
    graph.check();
    if (wants("print")) std::cerr << "[compile] optimized:\n" << graph.print();
    if (wants("print") || wants("say"))
      for (const auto& line : lines)
        if (!line.empty()) levin::log_info("[compile] " + line);
  }
  static bool keeps_bits(const Graph& graph) {
    return !graph.has_other_bits &&
           std::ranges::none_of(graph.nodes, [](const Node& node) { return node.call && node.call->changes_bits(); });
  }

  /// The steps as they are have a memory pool of their own, which goes with them.
  std::shared_ptr<GraphDevice> plain_, device_;
  Optimize optimize_;
  std::vector<Tensor> inputs_;
};

/// Memory of the host, without graphs.
class HostDevice final : public GraphDevice {
 public:
  c10::Device device() const override { return at::kCPU; }
  std::shared_ptr<DeviceGraph> capture(const std::function<void()>&) override {
    throw levin::detail::CaptureRefused("[compile] the CPU captures no graphs");
  }
  void upload(const Tensor& to, const void* host, size_t bytes) override {
    std::memcpy(to.mutable_data_ptr(), host, bytes);
  }
  Tensor alias(const Tensor& tensor, std::shared_ptr<DeviceGraph> graph) override {
    return at::from_blob(
        tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [graph = std::move(graph)](void*) {},
        tensor.options());
  }
  void empty_cache() override {}
  bool captures(const std::optional<c10::Stream>&) const override { return true; }
};

class FusedLists final : public FusedGraphs {
 public:
  explicit FusedLists(Optimize optimize) : FusedGraphs(nullptr, std::make_shared<HostDevice>(), std::move(optimize)) {}

  std::shared_ptr<DeviceGraph> capture(const std::function<void()>& body) override {
    // The step runs, and is undone: a capture executes nothing.
    std::vector<std::pair<Tensor, Tensor>> entered;
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    const auto random = generator.get_state();
    const auto undo = [&] {
      for (const auto& [memory, before] : entered)
        std::memcpy(memory.mutable_data_ptr(), before.const_data_ptr(), memory.nbytes());
      generator.set_state(random);
    };
    TracedStep traced;
    try {
      traced = trace(body, {.on_entering = [&](const Tensor& whole) { entered.emplace_back(whole, whole.clone()); }});
      if (!traced.reason.empty()) throw levin::detail::CaptureRefused("[compile] " + traced.reason);
      for (const auto& [memory, before] : entered) {
        const auto& storages = traced.graph.storages;
        const auto storage = std::ranges::find_if(storages, [&](const GraphStorage& each) {
          return each.enters && each.memory.unsafeGetStorageImpl() == memory.storage().unsafeGetStorageImpl();
        });
        if (!storage->leaves && std::memcmp(memory.const_data_ptr(), before.const_data_ptr(), memory.nbytes()) != 0)
          throw levin::detail::CaptureRefused("[compile] it writes tensors past the dispatcher");
      }
    } catch (...) {
      undo();
      throw;
    }
    auto expected = outcome_of(traced.graph, nullptr);
    undo();
    auto plain = std::make_shared<ListGraph>(traced.graph);
    auto graph = traced.graph;
    improve(graph);
    const bool to_the_bit = keeps_bits(graph);
    auto guards = guards_of(graph);
    auto fused = std::make_shared<ListGraph>(std::move(graph));
    auto both =
        std::make_shared<FusedGraph>(std::move(plain), std::move(fused), std::move(traced.graph), device_, to_the_bit);
    both->expected = std::move(expected);
    both->guards = std::move(guards);
    return both;
  }
};

}  // namespace

std::shared_ptr<GraphDevice> fused_graphs(std::shared_ptr<GraphDevice> plain, std::shared_ptr<GraphDevice> device,
                                          Optimize optimize) {
  return std::make_shared<FusedGraphs>(std::move(plain), std::move(device), std::move(optimize));
}

std::shared_ptr<GraphDevice> fused_graphs_on_cpu(Optimize optimize) {
  return std::make_shared<FusedLists>(std::move(optimize));
}

}  // namespace levin::compile
