#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "levin/core/state_dict.h"

namespace levin::optim {

using at::Tensor;

/// What becomes of a module's buffers (batch norm statistics) in its average. Integers are never averaged: they are
/// copied.
enum class AveragedBuffers { kAverage, kCopy, kLeave };

struct AveragedWeightsOptions {
  /// Where the averages are kept; by default beside each tensor.
  std::optional<c10::Device> device = {};
  AveragedBuffers buffers = AveragedBuffers::kAverage;
  /// Exponential moving average: average = decay * average + (1 - decay) * weight. By default the plain mean.
  std::optional<double> ema_decay = {};
  /// The new average, from the one before, the weight, and how many were averaged. Takes the place of the two above.
  std::function<Tensor(const Tensor& average, const Tensor& weight, int64_t count)> avg_fn = {};
};

/// A running average of a module's weights. The first update copies them. Lists of tensors are updated by one call
/// each. As in torch an average has the dtype of its weight: that of a 16-bit weight loses small updates to rounding.
///
///     optim::AveragedWeights ema(*model, {.ema_decay = 0.999});
///     opt.step();
///     ema.update();
///     ...
///     ema.swap();   // the module has the averages now, and this object the weights
class AveragedWeights {
 public:
  explicit AveragedWeights(torch::nn::Module& module, AveragedWeightsOptions options = {});

  /// Takes the module's weights as they are into the average.
  void update();
  /// How many updates there were.
  int64_t count() const { return count_; }
  void set_count(int64_t count) { count_ = count; }
  /// Exchanges averages and weights; again to go back. One tensor at a time is in memory twice.
  void swap();
  bool is_swapped() const { return swapped_; }
  /// Says which side holds the averages, after both were loaded.
  void set_swapped(bool swapped) { swapped_ = swapped; }

  /// What this object holds, by the names the module has (a tied tensor under each of them); the tensors themselves.
  StateDict state_dict() const;
  /// Names that are not there are left alone; a wrong shape is an Error.
  void load_state_dict(const StateDict& state);

 private:
  enum class Rule { kAverage, kCopy };
  struct Entry {
    std::vector<std::string> names;
    Tensor weight;
    Tensor average;
    Rule rule;
  };
  /// Tensors that one call can take: of one dtype, weight and average each on one device.
  struct List {
    std::vector<Tensor> weights;
    std::vector<Tensor> averages;
    Rule rule;
  };

  void add(const std::string& name, const Tensor& tensor, Rule rule);
  void average(List& list);

  AveragedWeightsOptions options_;
  std::vector<Entry> entries_;
  std::vector<List> lists_;
  int64_t count_ = 0;
  bool swapped_ = false;
};

}  // namespace levin::optim
