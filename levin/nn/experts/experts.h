#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>

#include "levin/distributed/collective.h"
#include "levin/nn/experts/dispatch.h"
#include "levin/nn/experts/options.h"
#include "levin/nn/tensor/part.h"
#include "levin/nn/unit.h"

namespace levin::nn {

/// A mixture of experts: a router sends each token to some of many gated MLPs, down(activation(gate(x)) * up(x)), and
/// their results are summed by its probabilities. Tokens are sorted by expert, and each product is over the rows of one
/// expert. Probabilities are float32, and under autocast all of the router is.
///
///     nn::Experts experts(nn::ExpertsOptions{.count = 8, .per_token = 2, .dim = 512, .width = 1408});
///     auto y = experts(x);   // [..., D] to [..., D]
struct ExpertsImpl : torch::nn::Module, TensorParallelPart {
  explicit ExpertsImpl(const ExpertsOptions& options);
  Tensor forward(const Tensor& x);
  int64_t split_dim(const std::string& parameter) const override;
  bool has_width() const override { return true; }
  void take_width(const TensorRanks& others, bool sequence) override {
    width_ranks = others;
    takes_part = sequence;
  }

  /// The count is that of all ranks.
  ExpertsOptions options;
  /// [experts, D]
  Tensor router;
  /// [experts, width, D], [experts, width, D] and [experts, D, width]: of the experts that are here.
  Tensor gate, up, down;
  /// The ranks that the experts are spread over (levin/nn/experts/split.h); null: all are here.
  std::shared_ptr<Collective> ranks;
  /// The ranks whose tokens are one batch for the balance of the load; null: this one's alone.
  std::shared_ptr<Collective> batch_ranks;
  /// The ranks that have a part of the width of each expert, and the same sequences; null: all of it is here.
  TensorRanks width_ranks;
  /// x is a part of the sequence: [B, T / ranks, D].
  bool takes_part = false;
  /// Of the last forward with a capacity: how many of the N * per_token pairs were dropped; on the device.
  Tensor dropped;

 private:
  /// Rows sorted by expert through their experts, here.
  Tensor compute(const Tensor& rows, GroupSizes& sizes);
  /// [rank][expert]: the rows that each rank has for each expert.
  std::vector<std::vector<int64_t>> counts_of_ranks(int64_t rows, DispatchPlan& plan);
  /// The same where experts are on other ranks too.
  Tensor compute_over_ranks(const Tensor& rows, DispatchPlan& plan);
};
LEVIN_MODULE(Experts);

/// An Error of one line where a value is not allowed.
void check_experts(const ExpertsOptions& options);

}  // namespace levin::nn
