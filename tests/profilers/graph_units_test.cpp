// Units of the kernels of replayed graphs: noted at the capture, put into the trace.
#include "levin/profilers/graph_units.h"

#include <sstream>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/nn/unit.h"
#include "levin/profilers/graph_kernels.h"
#include "levin/profilers/profile.h"

namespace levin::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Nodes of the graph that is "captured".
int64_t nodes = 0;

/// Two nodes forward, one backward.
struct Work : torch::autograd::Function<Work> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    nodes += 2;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    ++nodes;
    return {grads[0].clone()};
  }
};

/// A node after that of backward: autograd's own, as the sum of a bias gradient is.
struct After : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads,
                                            const torch::autograd::variable_list&) override {
    ++nodes;
    return grads;
  }
};

struct WorkerImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = Work::apply(x);
    y.grad_fn()->add_post_hook(std::make_unique<After>());
    return y;
  }
};
LEVIN_MODULE(Worker);

struct TwoImpl : torch::nn::Module {
  TwoImpl() : first(register_module("first", Worker())), last(register_module("last", Worker())) {}
  Tensor forward(const Tensor& x) {
    auto y = first(x);
    ++nodes;  // the unit's own
    return last(y);
  }
  Worker first, last;
};
LEVIN_MODULE(Two);

struct RootImpl : torch::nn::Module {
  RootImpl() : two(register_module("two", Two())) {}
  Tensor forward(const Tensor& x) { return two(x); }
  Two two;
};
LEVIN_MODULE(Root);

/// Of the step "a node, forward, backward, a node", whose first node is no kernel.
std::shared_ptr<const GraphUnits> captured() {
  Root model;
  nodes = 0;
  GraphUnitMarks marks({model.get()}, [] { return nodes; });
  ++nodes;
  model(at::ones({2}).requires_grad_()).sum().backward();
  ++nodes;
  std::vector<bool> kernels(static_cast<size_t>(nodes), true);
  kernels[0] = false;
  return marks.units(kernels);
}

std::vector<std::string> owners(const GraphUnits& graph) {
  std::vector<std::string> all;
  for (const auto& owner : graph.kernels)
    all.push_back(owner.unit < 0
                      ? "none"
                      : graph.units[static_cast<size_t>(owner.unit)].path + (owner.is_backward ? " backward" : ""));
  return all;
}

TEST(GraphUnits, AreNotedInForwardAndBackward) {
  const auto graph = captured();
  ASSERT_TRUE(graph);
  EXPECT_THAT(owners(*graph), ElementsAre("two.first", "two.first", "two", "two.last", "two.last", "two.last backward",
                                          "two.last backward", "two.first backward", "two.first backward", "none"));
}

TEST(GraphUnits, NothingIsLeftBehind) {
  int64_t id = 0;
  {
    const auto graph = captured();
    id = graph->id;
    EXPECT_TRUE(find_graph_units(id));
  }
  EXPECT_FALSE(find_graph_units(id));
  nodes = 0;
  Root model;
  GraphUnitMarks marks({model.get()}, [] { return nodes; });
  EXPECT_FALSE(marks.units({}));
}

TEST(GraphUnits, AreWantedWhileAProfileWithUnitsLives) {
  EXPECT_FALSE(graph_units_are_wanted());
  {
    const profilers::Profile profile({.with_modules = true});
    EXPECT_TRUE(graph_units_are_wanted());
  }
  const profilers::Profile without({.with_modules = false});
  EXPECT_FALSE(graph_units_are_wanted());
}

std::string event(const std::string& category, const std::string& name, double start, double duration,
                  int correlation = -1) {
  std::string text = "  {\n    \"ph\": \"X\", \"cat\": \"" + category + "\", \"name\": \"" + name +
                     "\", \"pid\": 0, \"tid\": 7,\n    \"ts\": " + std::to_string(start) +
                     ", \"dur\": " + std::to_string(duration) + ",\n    \"args\": {\n      \"External id\": 1";
  if (correlation >= 0) text += ",\n      \"stream\": 7, \"correlation\": " + std::to_string(correlation);
  return text + "\n    }\n  },\n";
}

TEST(GraphKernels, TakeTheOrderOfTheGraph) {
  const auto graph = captured();
  std::string trace = event("kernel", "eager", 1, 1, 5);
  trace += event("user_annotation", replay_span_name(graph->id), 10, 5);
  trace += event("cuda_runtime", "cudaGraphLaunch", 11, 2, 6);
  // As a file may have them: not in the order of their times.
  const std::vector<int> order{3, 0, 1, 2, 4, 9, 7, 6, 5, 8};
  for (const int i : order) trace += event("kernel", "k" + std::to_string(i), 20 + i, 1, 6);
  // A launch that lost a kernel, and one of a graph that nobody knows.
  trace += event("user_annotation", replay_span_name(graph->id), 40, 5);
  trace += event("cuda_runtime", "cudaGraphLaunch", 41, 2, 8);
  trace += event("kernel", "k0", 50, 1, 8);
  trace += event("cuda_runtime", "cudaGraphLaunch", 60, 2, 9) + event("kernel", "k0", 70, 1, 9);
  std::istringstream from(trace);
  const GraphKernels kernels(from);
  EXPECT_EQ(kernels.arguments(0), "");
  const auto expected = owners(*graph);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& owner = expected[static_cast<size_t>(order[i])];
    const auto told = kernels.arguments(static_cast<int64_t>(i) + 1);
    if (owner == "none") {
      EXPECT_EQ(told, "");
    } else {
      EXPECT_THAT(told, HasSubstr("\"Unit\": \"" + owner.substr(0, owner.find(' ')) + "\"")) << i;
      EXPECT_THAT(told, HasSubstr(owner.ends_with("backward") ? "\"backward\"" : "\"forward\""));
    }
  }
  EXPECT_EQ(kernels.arguments(11), "");
  EXPECT_EQ(kernels.arguments(12), "");
}

}  // namespace
}  // namespace levin::detail
