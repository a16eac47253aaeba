// Calls of torch that stay in a program after fabric.setup: each does what it does in the plain program, or is one line
// that names the call to write. The table of docs/converting.md has the rows of this one.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::torch_calls {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        second(register_module("second", torch::nn::Linear(8, 4))),
        direction(register_parameter("direction", torch::randn({3, 4}))),
        scale(register_parameter("scale", torch::ones({3, 1}))) {}
  Tensor forward(const Tensor& x) {
    const auto weight = scale * direction / direction.norm(2, {1}, true);  // weight norm by hand
    return torch::linear(second(torch::tanh(first(x))), weight);
  }
  Tensor penalty() { return torch::nn::utils::parameters_to_vector(parameters()).pow(2).sum(); }
  torch::nn::Linear first, second;
  Tensor direction, scale;
};
TORCH_MODULE(Net);

/// The loop of a program, plain or with Fabric. Rows below write the calls between.
class Loop {
 public:
  /// By its owner.
  Loop() { make(); }
  Loop(Fabric& fabric, bool lbfgs) : fabric_(&fabric) {
    make();
    if (lbfgs)
      optimizer.reset(new torch::optim::LBFGS(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3)));
    std::tie(net_, mine_) = [&] {
      auto [net, mine] = fabric.setup(model, *optimizer);
      return std::pair(std::make_shared<FabricModule<Net>>(net), mine);
    }();
  }
  Tensor forward(const Tensor& x) { return net_ ? (*net_)(x) : model->forward(x); }
  template <class F>
  Tensor call(F method) {
    return net_ ? net_->call(method) : ((*model).*method)();
  }
  void backward(const Tensor& loss) { fabric_ ? fabric_->backward(loss) : loss.backward(); }
  Tensor loss(int step) { return forward(rows(step).to(model->first->weight.scalar_type())).pow(2).mean(); }
  /// Of this rank.
  Tensor rows(int step) const {
    const int rank = fabric_ ? fabric_->global_rank() : 0, world = fabric_ ? fabric_->world_size() : 1;
    torch::manual_seed(70 + static_cast<uint64_t>(step));
    return torch::randn({12, 6}).slice(0, rank * 12 / world, (rank + 1) * 12 / world);
  }
  /// Steps with a call after backward.
  void train(const std::function<void(int)>& after_backward = {}, int steps = 4) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      backward(loss(step));
      if (after_backward) after_backward(step);
      optimizer->step();
    }
  }

  Net model{nullptr};
  /// Taken before setup.
  std::vector<Tensor> parameters;
  std::shared_ptr<torch::nn::Module> copy;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  /// What a row wants to be equal besides the weights.
  Tensor seen = torch::zeros({});

 private:
  void make() {
    torch::manual_seed(3);
    model = Net();
    parameters = model->parameters();
    copy = model->first->clone();
    optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-3));
  }

  Fabric* fabric_ = nullptr;
  std::shared_ptr<FabricModule<Net>> net_;
  Optimizer mine_;
};

struct Row {
  /// As it stands in the table of the page.
  std::string call;
  std::function<void(Loop&)> body;
  /// Part of the line by which each kind of strategy refuses it; empty: it works.
  std::string ddp = {}, sharded = {};
  bool lbfgs = false;
};

std::vector<Row> rows() {
  namespace utils = torch::nn::utils;
  return {
      {.call = "torch::nn::utils::clip_grad_norm_(net->parameters(), c)",
       .body =
           [](Loop& l) {
             l.train([&](int) { l.seen = l.seen + utils::clip_grad_norm_(l.model->parameters(), 0.05); });
           }},
      {.call = "torch::nn::utils::clip_grad_value_(net->parameters(), c)",
       .body = [](Loop& l) { l.train([&](int) { utils::clip_grad_value_(l.model->parameters(), 0.01); }); }},
      {.call = "adam.zero_grad(), net->zero_grad()",
       .body =
           [](Loop& l) {
             l.train([&](int step) {
               if (step == 1) l.optimizer->zero_grad(/*set_to_none=*/false);
               if (step == 2) l.model->zero_grad();
             });
           }},
      {.call = "net->train(), net->eval()",
       .body =
           [](Loop& l) {
             l.model->eval();
             l.train({}, 2);
             l.model->train();
             l.train({}, 2);
           }},
      {.call = "net->to(device)",
       .body =
           [](Loop& l) {
             l.train({}, 2);
             l.model->to(torch::kCPU);
             l.train({}, 2);
           }},
      {.call = "parameters() from before setup",
       .body =
           [](Loop& l) {
             l.train([&](int) {
               const at::NoGradGuard no_grad;
               for (auto& p : l.parameters) p.sub_(p.grad(), 0.1);
             });
           }},
      {.call = "parameters_to_vector, vector_to_parameters",
       .body =
           [](Loop& l) {
             l.train([&](int) {
               const at::NoGradGuard no_grad;
               const auto all = utils::parameters_to_vector(l.model->parameters());
               l.seen = l.seen + all.norm();
               utils::vector_to_parameters(all * 0.9, l.model->parameters());
             });
           }},
      {.call = "loss + parameters_to_vector(net->parameters()).pow(2).sum()",
       .body =
           [](Loop& l) {
             for (int step = 0; step < 3; ++step) {
               l.optimizer->zero_grad();
               l.backward(l.loss(step) + 0.1 * utils::parameters_to_vector(l.model->parameters()).pow(2).sum());
               l.optimizer->step();
             }
           },
       .sharded = "in a method of the module that runs by net.call(&Net::method)"},
      {.call = "the same in a method: net.call(&NetImpl::penalty)",
       .body =
           [](Loop& l) {
             for (int step = 0; step < 3; ++step) {
               l.optimizer->zero_grad();
               l.backward(l.loss(step) + 0.1 * l.call(&NetImpl::penalty));
               l.optimizer->step();
             }
           }},
      {.call = "loss + w.pow(2).sum() of each parameter",
       .body =
           [](Loop& l) {
             for (int step = 0; step < 3; ++step) {
               l.optimizer->zero_grad();
               auto loss = l.loss(step);
               for (const auto& p : l.model->parameters()) loss = loss + 0.1 * p.pow(2).sum();
               l.backward(loss);
               l.optimizer->step();
             }
           },
       .sharded = "The size of tensor a"},
      {.call = "lbfgs.step(closure)",
       .body =
           [](Loop& l) {
             for (int step = 0; step < 3; ++step)
               l.optimizer->step([&] {
                 l.optimizer->zero_grad();
                 const auto loss = l.loss(step);
                 l.backward(loss);
                 return loss.detach();
               });
           },
       .sharded = "LBFGS steps by figures of full parameters",
       .lbfgs = true},
      {.call = "torch::optim::StepLR(adam, ...)",
       .body =
           [](Loop& l) {
             torch::optim::StepLR scheduler(*l.optimizer, 1, 0.3);
             l.train([&](int) { scheduler.step(); });
           }},
      {.call = "net->clone() before setup",
       .body =
           [](Loop& l) {
             l.train({}, 2);
             const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(l.copy);
             l.seen = copy->forward(torch::ones({2, 6})).detach().sum();
           }},
      {.call = "net->forward(x)",
       .body = [](Loop& l) { l.backward(l.model->forward(l.rows(0)).pow(2).mean()); },
       .ddp = "call that one, net(x)",
       .sharded = "shapes cannot be multiplied"},
      {.call = "loss.backward()",
       .body = [](Loop& l) { l.loss(0).backward(); },
       .ddp = "needs fabric.backward(loss)",
       .sharded = "needs fabric.backward(loss)"},
      {.call = "torch::optim::Adam made after setup",
       .body =
           [](Loop& l) {
             torch::optim::Adam late(l.model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-3));
             for (int step = 0; step < 3; ++step) {
               late.zero_grad();
               l.backward(l.loss(step));
               late.step();
             }
           }},
      {.call = "requires_grad_(false) after setup",
       .body =
           [](Loop& l) {
             l.train({}, 2);
             for (auto& p : l.model->first->parameters()) p.requires_grad_(false);
             l.train({}, 2);
           },
       .ddp = "freeze before fabric.setup"},
  };
}

/// Weights, gathered, and what a row has seen.
std::string numbers(const StateDict& state, const Tensor& seen) {
  std::string text;
  for (const auto& [name, value] : state)
    text += fmt::format("{:.4f} {:.4f} ", value.to_tensor().sum().item<double>(),
                        value.to_tensor().pow(2).sum().item<double>());
  return text + fmt::format("{:.4f}", seen.item<double>());
}

/// The first line of what an exception says; empty: there was none.
std::string line_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return one_line(error);
  }
  return {};
}

/// All rows in one run: each with a module and an optimizer of its own. Ranks are refused alike, so they stay together.
LEVIN_PROBE(torch_calls) {
  at::set_num_threads(1);
  Fabric fabric({.accelerator = "cpu", .strategy = arguments.at(1)});
  fabric.launch();
  std::string text;
  for (const auto& row : rows()) {
    std::string result;
    auto line = line_of([&] {
      Loop loop(fabric, row.lbfgs);
      row.body(loop);
      auto state = module_state_dict(*loop.model);
      if (auto* shards = fabric.strategy().shards()) state = full_state_dict(state, *shards, {.rank0_only = false});
      result = numbers(state, loop.seen);
    });
    text += (line.empty() ? result : line) + "\n";
  }
  testing::write_answer(arguments.at(0), text);
}

LEVIN_PROBE(other_dtype) {
  Fabric fabric({.accelerator = "cpu", .strategy = arguments.at(1)});
  fabric.launch();
  testing::write_answer(arguments.at(0), line_of([&] {
                          Loop loop(fabric, false);
                          loop.train({}, 1);
                          loop.model->to(torch::kDouble);
                          loop.train({}, 1);
                        }));
}

/// Calls that end a run, and what they say.
const std::string kOtherDtype = "net->to(torch::kDouble)";

TEST(TorchCalls, DoAsInThePlainProgramOrNameTheCall) {
  const auto all = rows();
  std::vector<std::string> plain;
  for (const auto& row : all) {
    Loop loop;
    if (row.lbfgs)
      loop.optimizer =
          std::make_unique<torch::optim::LBFGS>(loop.model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    row.body(loop);
    plain.push_back(numbers(module_state_dict(*loop.model), loop.seen));
  }
  for (const std::string strategy : {"ddp", "fsdp", "deepspeed_stage_2", "deepspeed_stage_3_offload", "colossalai"}) {
    const testing::TemporaryFolder folder;
    testing::launch_probe("torch_calls", 2, {folder.path().string(), strategy});
    for (const auto& answer : testing::read_answers(folder.path(), 2)) {
      std::istringstream lines(answer);
      for (size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE(strategy + ": " + all[i].call);
        std::string line;
        std::getline(lines, line);
        const auto& refused = strategy == "ddp" ? all[i].ddp : all[i].sharded;
        if (refused.empty())
          EXPECT_EQ(line, plain[i]);
        else
          EXPECT_THAT(line, HasSubstr(refused));
      }
    }
  }
}

TEST(TorchCalls, ModulesKeepTheirDtype) {
  for (const char* strategy : {"ddp", "fsdp"}) {
    const testing::TemporaryFolder folder;
    (void)testing::launch_probe("other_dtype", 2, {folder.path().string(), strategy});
    EXPECT_THAT(
        testing::read_answers(folder.path(), 2)[0],
        HasSubstr("[fabric] parameters were Float at fabric.setup, and are Double: net->to(dtype) stands before "
                  "setup; or ask for a precision, Fabric({.precision = \"64-true\"})"))
        << strategy;
  }
}

TEST(TorchCalls, ThePageHasEveryRow) {
  std::ifstream file(fs::path(testing::source_dir()) / "docs/converting.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> calls{kOtherDtype};
  for (const auto& row : rows()) calls.push_back(row.call);
  for (const auto& call : calls) EXPECT_THAT(page, HasSubstr("| `" + call + "` |"));
}

}  // namespace
}  // namespace levin::torch_calls
