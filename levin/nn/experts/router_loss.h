#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"

namespace levin::nn {

/// What the router of one layer has decided about N tokens.
struct RouterRecord {
  /// [N, experts] float32, before and behind the softmax.
  Tensor logits, probabilities;
  /// [N, per_token].
  Tensor chosen;
  /// The ranks whose tokens are one batch for balance_loss; null: this one's alone.
  std::shared_ptr<Collective> ranks;
};

/// Routers that run on this thread while it lives leave their records here. What runs again in backward (checkpoints)
/// leaves none.
class RouterRecords {
 public:
  RouterRecords();
  ~RouterRecords();
  RouterRecords(const RouterRecords&) = delete;
  RouterRecords& operator=(const RouterRecords&) = delete;

  /// Null where nobody wants records.
  static RouterRecords* current();
  void add(RouterRecord record) { records_.push_back(std::move(record)); }
  const std::vector<RouterRecord>& records() const { return records_; }

 private:
  RouterRecords* before_;
  std::vector<RouterRecord> records_;
};

/// The loss of Switch Transformer and Mixtral, over the tokens of all layers together: experts * sum over experts of
/// (tokens per token of the batch) * (mean probability). It is per_token where the load is even. `mask` [N]: 0 for
/// tokens that do not count. Where a record has ranks the batch is that of all of them, the value is the same on each,
/// and gradients that are averaged over them are those of the whole batch. Every rank must call then.
Tensor balance_loss(std::span<const RouterRecord> records, const Tensor& mask = {});
/// The mean square of logsumexp(logits) over tokens and layers: keeps logits small (ST-MoE).
Tensor router_z_loss(std::span<const RouterRecord> records, const Tensor& mask = {});

}  // namespace levin::nn
