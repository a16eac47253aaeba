#include "levin/nn/experts/router_loss.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"

namespace levin::nn {
namespace {

thread_local RouterRecords* records_of_thread = nullptr;

/// [N]: 1 for a token that counts.
Tensor counted_tokens(const Tensor& mask, const RouterRecord& record) {
  if (!mask.defined()) return {};
  LEVIN_CHECK(mask.numel() == record.logits.size(0), "[experts] a mask of ", mask.numel(), " tokens for ",
              record.logits.size(0));
  return mask.reshape({-1}).ne(0).to(record.logits.device(), at::kFloat);
}

Tensor number_of(const Tensor& counted, const RouterRecord& record) {
  if (counted.defined()) return counted.sum();
  return at::full({}, static_cast<double>(record.logits.size(0)), record.logits.options().requires_grad(false));
}

/// The sum over the ranks. Gradients are averaged over ranks afterwards, which a sum must make good.
Tensor summed(const Tensor& x, const std::shared_ptr<Collective>& ranks) {
  if (!ranks || ranks->size() == 1) return x;
  auto sum = x.detach().clone();
  ranks->all_reduce(sum);
  return x.requires_grad() ? sum + static_cast<double>(ranks->size()) * (x - x.detach()) : sum;
}

}  // namespace

RouterRecords::RouterRecords() : before_(records_of_thread) {
  records_of_thread = this;
}

RouterRecords::~RouterRecords() {
  records_of_thread = before_;
}

RouterRecords* RouterRecords::current() {
  return records_of_thread;
}

Tensor balance_loss(std::span<const RouterRecord> records, const Tensor& mask) {
  LEVIN_CHECK(!records.empty(), "[experts] balance_loss of no layer");
  const auto experts = records[0].logits.size(1);
  Tensor load, probability, tokens;
  for (const auto& record : records) {
    const auto counted = counted_tokens(mask, record);
    const auto chosen = record.chosen.reshape({-1});
    auto ones = at::ones({chosen.size(0)}, record.logits.options().requires_grad(false));
    if (counted.defined()) ones = counted.repeat_interleave(record.chosen.size(1));
    const auto own_load = at::zeros({experts}, ones.options()).index_add(0, chosen, ones);
    const auto own = (counted.defined() ? record.probabilities * counted.unsqueeze(1) : record.probabilities).sum(0);
    load = load.defined() ? load + own_load : own_load;
    probability = probability.defined() ? probability + own : own;
    tokens = tokens.defined() ? tokens + number_of(counted, record) : number_of(counted, record);
  }
  const auto sums = summed(at::cat({load, probability, tokens.reshape({1})}), records[0].ranks);  // one message
  const auto parts = sums.split_with_sizes({experts, experts, 1});
  return (parts[0] / parts[2] * (parts[1] / parts[2])).sum() * static_cast<double>(experts);
}

Tensor router_z_loss(std::span<const RouterRecord> records, const Tensor& mask) {
  LEVIN_CHECK(!records.empty(), "[experts] router_z_loss of no layer");
  Tensor squares, tokens;
  for (const auto& record : records) {
    const auto counted = counted_tokens(mask, record);
    auto square = at::logsumexp(record.logits, {-1}).square();
    if (counted.defined()) square = square * counted;
    squares = squares.defined() ? squares + square.sum() : square.sum();
    tokens = tokens.defined() ? tokens + number_of(counted, record) : number_of(counted, record);
  }
  const auto sums = summed(at::stack({squares, tokens}), records[0].ranks);
  return sums[0] / sums[1];
}

}  // namespace levin::nn
