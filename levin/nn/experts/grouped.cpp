#include "levin/nn/experts/grouped.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/played_device.h"

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x [M, in] by groups times matrix [G, in, out].
Tensor product(const Tensor& x, const Tensor& matrix, const Tensor& ends, at::IntArrayRef counts) {
  if (x.is_meta() || x.size(0) == 0) return at::empty({x.size(0), matrix.size(2)}, x.options());
  if (counts.empty()) return at::_grouped_mm(x, matrix, ends);
  auto result = at::empty({x.size(0), matrix.size(2)}, x.options());
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    auto rows = result.narrow(0, at, counts[i]);
    at::mm_out(rows, x.narrow(0, at, counts[i]), matrix[static_cast<int64_t>(i)]);
    at += counts[i];
  }
  return result;
}

/// [G, out, in]: of each group the product of its rows of grad [M, out] and x [M, in].
Tensor weight_gradient(const Tensor& grad, const Tensor& x, int64_t groups, const Tensor& ends,
                       at::IntArrayRef counts) {
  if (counts.empty() && !x.is_meta() && x.size(0) > 0) {
    // On some devices torch's product leaves groups without rows as they were.
    const auto none = ends.diff(1, -1, at::zeros({1}, ends.options())).eq(0);
    return at::_grouped_mm(grad.t(), x, ends).masked_fill_(none.view({-1, 1, 1}), 0);
  }
  auto result = at::empty({groups, grad.size(1), x.size(1)}, x.options());
  if (x.is_meta()) return result;
  if (x.size(0) == 0) return result.zero_();
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    auto own = result[static_cast<int64_t>(i)];
    if (counts[i] == 0) {
      own.zero_();
      continue;
    }
    at::mm_out(own, grad.narrow(0, at, counts[i]).t(), x.narrow(0, at, counts[i]));
    at += counts[i];
  }
  return result;
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& ends,
                        std::vector<int64_t> counts, double weight_grad_scale) {
    context->saved_data["scale"] = weight_grad_scale;
    context->save_for_backward({x, weight, ends});
    auto result = product(x, weight.transpose(1, 2), ends, counts);
    context->saved_data["counts"] = std::move(counts);
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& weight = saved[1];
    const auto counts = context->saved_data["counts"].toIntVector();
    const auto grad = grads[0].contiguous();
    Tensor of_x, of_weight;
    if (context->needs_input_grad(0)) of_x = product(grad, weight, saved[2], counts);
    if (context->needs_input_grad(1)) of_weight = weight_gradient(grad, x, weight.size(0), saved[2], counts);
    if (const auto scale = context->saved_data["scale"].toDouble(); of_weight.defined() && scale != 1)
      of_weight.mul_(scale);
    return {of_x, of_weight, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

GroupSizes::GroupSizes(std::vector<int64_t> counts, const Tensor& like) : counts_(std::move(counts)) {
  std::vector<int> ends;
  int64_t end = 0;
  for (const auto count : counts_) ends.push_back(static_cast<int>(end += count));
  ends_ = like.is_meta() ? at::empty({static_cast<int64_t>(ends.size())}, like.options().dtype(at::kInt))
                         : at::tensor(ends, at::kInt).to(like.device());
}

const std::vector<int64_t>& GroupSizes::counts(int64_t rows) {
  if (!counts_.empty()) return counts_;
  if (ends_.is_meta()) {
    for (int64_t i = 0; i < groups(); ++i) counts_.push_back(rows / groups() + (i < rows % groups() ? 1 : 0));
    return counts_;
  }
  const auto ends = ends_.cpu();
  int64_t before = 0;
  for (int64_t i = 0; i < ends.size(0); ++i) {
    const int64_t end = ends.const_data_ptr<int>()[i];
    counts_.push_back(end - before);
    before = end;
  }
  return counts_;
}

bool& allow_one_product() {
  static bool allowed = true;
  return allowed;
}

bool is_one_product(const Tensor& x, const Tensor& weight) {
  // Rows begin at multiples of 16 bytes. Of a single row the strides say nothing.
  return allow_one_product() && x.is_cuda() && x.size(0) > 1 && x.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16 && weight.size(1) % 8 == 0 && weight.size(2) % 8 == 0;
}

Tensor grouped_linear(const Tensor& x, const Tensor& weight, GroupSizes& sizes, double weight_grad_scale) {
  LEVIN_CHECK(x.dim() == 2 && weight.dim() == 3 && x.size(1) == weight.size(2) && sizes.groups() == weight.size(0),
              "[experts] rows ", x.sizes(), " of ", sizes.groups(), " groups and weights ", weight.sizes(),
              " do not go together");
  const auto counts = is_one_product(x, weight) ? std::vector<int64_t>() : sizes.counts(x.size(0));
  return GroupedLinear::apply(x.contiguous(), weight.contiguous(), sizes.ends(), counts, weight_grad_scale);
}

}  // namespace levin::nn
