#include "levin/nn/tensor/functions.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor sum_now(const Tensor& x, Collective& ranks) {
  auto sum = x.contiguous().clone();
  ranks.all_reduce(sum);
  return sum;
}

Tensor gather_now(const Tensor& x, int64_t dim, std::span<const int64_t> counts, Collective& ranks) {
  const auto most = *std::max_element(counts.begin(), counts.end());
  auto mine = x.transpose(0, dim);
  if (mine.size(0) < most) {
    std::vector<int64_t> pad(static_cast<size_t>(2 * x.dim()), 0);
    pad.back() = most - mine.size(0);
    mine = at::constant_pad_nd(mine, pad);
  }
  const auto all = ranks.all_gather(mine.contiguous());
  std::vector<Tensor> parts;
  for (size_t i = 0; i < counts.size(); ++i)
    parts.push_back(all[static_cast<int64_t>(i)].narrow(0, 0, counts[i]).transpose(0, dim));
  return at::cat(parts, dim);
}

Tensor gather_now(const Tensor& x, int64_t dim, Collective& ranks) {
  return gather_now(x, dim, std::vector<int64_t>(static_cast<size_t>(ranks.size()), x.size(dim)), ranks);
}

/// Rows of the sum: [size * n, ...] of each rank to [n, ...].
Tensor sum_part_now(const Tensor& x, int64_t dim, Collective& ranks) {
  return ranks.reduce_scatter(x.transpose(0, dim).contiguous()).transpose(0, dim).contiguous();
}

Tensor own_part(const Tensor& x, int64_t dim, std::span<const int64_t> counts, int rank) {
  int64_t first = 0;
  for (int i = 0; i < rank; ++i) first += counts[static_cast<size_t>(i)];
  return x.narrow(dim, first, counts[static_cast<size_t>(rank)]).contiguous();
}

Tensor own_part(const Tensor& x, int64_t dim, const Collective& ranks) {
  const auto each = x.size(dim) / ranks.size();
  return x.narrow(dim, ranks.rank() * each, each).contiguous();
}

struct CopyToRanks : torch::autograd::Function<CopyToRanks> {
  static Tensor forward(AutogradContext* context, const Tensor& x, TensorRanks ranks) {
    context->saved_data["ranks"] = keep(std::move(ranks));
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0].defined() ? sum_now(grads[0], *kept(context)) : Tensor(), Tensor()};
  }

  // saved_data takes no pointers: a holder that torch counts does.
  struct Holder : torch::CustomClassHolder {
    explicit Holder(TensorRanks r) : ranks(std::move(r)) {}
    TensorRanks ranks;
  };
  static c10::IValue keep(TensorRanks ranks) {
    return c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(ranks)));
  }
  static TensorRanks kept(AutogradContext* context) {
    return c10::static_intrusive_pointer_cast<Holder>(context->saved_data["ranks"].toCapsule())->ranks;
  }
};

struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static Tensor forward(AutogradContext*, const Tensor& x, const TensorRanks& ranks) { return sum_now(x, *ranks); }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], Tensor()}; }
};

/// Forward is one of four exchanges, backward its counterpart.
enum class Exchange { kGather, kPart, kRegion, kSumPart };

struct ExchangeParts : torch::autograd::Function<ExchangeParts> {
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t dim, std::vector<int64_t> counts,
                        int64_t kind, TensorRanks ranks) {
    context->saved_data["ranks"] = CopyToRanks::keep(ranks);
    context->saved_data["dim"] = dim;
    context->saved_data["kind"] = kind;
    context->saved_data["counts"] = counts;
    switch (static_cast<Exchange>(kind)) {
      case Exchange::kGather:
        return gather_now(x, dim, counts, *ranks);
      case Exchange::kPart:
        return own_part(x, dim, *ranks);
      case Exchange::kRegion:
        return gather_now(x, dim, *ranks);
      case Exchange::kSumPart:
        return sum_part_now(x, dim, *ranks);
    }
    return {};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto ranks = CopyToRanks::kept(context);
    const auto dim = context->saved_data["dim"].toInt();
    const auto counts = context->saved_data["counts"].toIntVector();
    variable_list result(5);
    if (!grads[0].defined()) return result;
    switch (static_cast<Exchange>(context->saved_data["kind"].toInt())) {
      case Exchange::kGather:
        result[0] = own_part(grads[0], dim, counts, ranks->rank());
        break;
      case Exchange::kRegion:
        result[0] = sum_part_now(grads[0], dim, *ranks);
        break;
      case Exchange::kPart:
      case Exchange::kSumPart:
        result[0] = gather_now(grads[0], dim, *ranks);
        break;
    }
    return result;
  }
};

bool is_alone(const TensorRanks& ranks) {
  return !ranks || ranks->size() == 1;
}

int64_t wrapped(int64_t dim, const Tensor& x) {
  return dim < 0 ? dim + x.dim() : dim;
}

Tensor exchanged(const Tensor& x, int64_t dim, std::vector<int64_t> counts, Exchange kind, const TensorRanks& ranks) {
  if (is_alone(ranks)) return x;
  return ExchangeParts::apply(x, wrapped(dim, x), std::move(counts), static_cast<int64_t>(kind), ranks);
}

void check_divides(const Tensor& x, int64_t dim, const TensorRanks& ranks) {
  if (is_alone(ranks)) return;
  LEVIN_CHECK(x.size(dim) % ranks->size() == 0, "[tensor_parallel] a sequence of ", x.size(dim),
              " is not a multiple of the ", ranks->size(), " ranks that sequence_parallel spreads it over");
}

}  // namespace

Tensor copied_to_ranks(const Tensor& x, const TensorRanks& ranks) {
  if (is_alone(ranks) || !at::GradMode::is_enabled() || !x.requires_grad()) return x;
  return CopyToRanks::apply(x, ranks);
}

Tensor summed_over_ranks(const Tensor& x, const TensorRanks& ranks) {
  return is_alone(ranks) ? x : SumOverRanks::apply(x, ranks);
}

Tensor gathered_from_ranks(const Tensor& x, int64_t dim, std::span<const int64_t> counts, const TensorRanks& ranks) {
  return exchanged(x, dim, {counts.begin(), counts.end()}, Exchange::kGather, ranks);
}

Tensor part_of_rank(const Tensor& x, int64_t dim, const TensorRanks& ranks) {
  check_divides(x, dim, ranks);
  return exchanged(x, dim, {}, Exchange::kPart, ranks);
}

Tensor gathered_for_region(const Tensor& x, int64_t dim, const TensorRanks& ranks) {
  return exchanged(x, dim, {}, Exchange::kRegion, ranks);
}

Tensor summed_part(const Tensor& x, int64_t dim, const TensorRanks& ranks) {
  check_divides(x, dim, ranks);
  return exchanged(x, dim, {}, Exchange::kSumPart, ranks);
}

}  // namespace levin::nn
