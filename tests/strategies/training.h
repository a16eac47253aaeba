#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "levin/fabric/microbatches.h"
#include "levin/strategies/choice.h"
#include "levin/testing/boring.h"
#include "levin/testing/ranks.h"
#include "levin/testing/tensors.h"

namespace levin::testing {

/// Whether to run whole matrices of models, schedules, meshes and counts; without it a part in which each appears.
inline bool all_meshes() {
  return std::getenv("LEVIN_ALL_MESHES") != nullptr;
}

/// The smallest Fabric: a module under a strategy, called and differentiated in the order that ModuleSync asks for.
class Trainee {
 public:
  Trainee(Collective& group, const StrategyChoice& choice, torch::nn::Module& module, c10::Device device = at::kCPU,
          const std::string& precision = "32-true", bool captured = false)
      : strategy_(make_strategy(choice, group.size())) {
    strategy_->connect({&group, [](auto*) {}}, device);
    strategy_->set_precision(resolve_precision(precision, device.type()));
    strategy_->set_captured(captured);
    sync_ = strategy_->setup_module(module);
  }

  template <class F>
  Tensor forward(F&& call) {
    if (sync_) sync_->before_forward();
    struct Leave {
      ModuleSync* sync;
      ~Leave() {
        if (sync) sync->leave_forward();
      }
    };
    Tensor output;
    {
      const Leave leave{sync_.get()};
      output = call();
    }
    if (sync_) sync_->after_forward({&output, output.requires_grad() ? size_t{1} : size_t{0}});
    return output;
  }

  void backward(const Tensor& loss, bool retain_graph = false) {
    std::vector<ModuleSync*> syncs;
    if (sync_) syncs.push_back(sync_.get());
    run_backward(syncs, loss, [&] { loss.backward({}, retain_graph); });
  }

  /// Forward and backward of a batch, in parts where the strategy computes so. Returns the loss.
  template <class F>
  Tensor step(const Tensor& batch, F&& loss_of, double factor = 1) {
    const auto rows = batch.size(0);
    const int parts = sync_ ? sync_->microbatches(rows) : 0;
    if (parts == 0) {
      const auto loss = forward([&] { return loss_of(batch); });
      backward(loss * factor);
      return loss.detach();
    }
    const auto counts = levin::detail::rows_of_parts(rows, parts);
    const auto micro = levin::detail::split_rows(batch, counts);
    MicrobatchStep work{.rows = counts, .shapes = {}, .forward = {}, .scale = {}};
    for (const auto& part : micro) work.shapes.push_back(levin::detail::shapes_of(part));
    work.forward = [&](size_t part) { return forward([&] { return loss_of(micro[part]); }); };
    work.scale = [&](const Tensor& loss) { return loss * factor; };
    return sync_->run_microbatches(work);
  }

  ModuleSync* sync() { return sync_.get(); }
  void set_sync(bool enabled) {
    if (sync_) sync_->set_sync(enabled);
  }
  Strategy& strategy() { return *strategy_; }

 private:
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<ModuleSync> sync_;
};

/// Three layers, the middle one optional, and a batch norm when asked for.
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(bool norm = false) {
    a = register_module("a", torch::nn::Linear(32, 16));
    if (norm) n = register_module("n", torch::nn::BatchNorm1d(16));
    b = register_module("b", torch::nn::Linear(16, 16));
    c = register_module("c", torch::nn::Linear(16, 2));
  }
  Tensor forward(const Tensor& x, bool use_b = true) {
    auto h = a(x);
    if (n) h = n(h);
    h = torch::tanh(h);
    if (use_b) h = torch::tanh(b(h));
    return c(h);
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  torch::nn::BatchNorm1d n{nullptr};
};
TORCH_MODULE(SmallNet);

inline Tensor mse(const Tensor& a, const Tensor& b) {
  return torch::nn::functional::mse_loss(a, b);
}

inline std::vector<Tensor> values(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

inline void clear_grads(const std::vector<Tensor>& parameters) {
  for (auto parameter : parameters) parameter.mutable_grad() = Tensor();
}

}  // namespace levin::testing
