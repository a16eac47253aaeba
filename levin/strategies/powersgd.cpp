#include <map>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "levin/strategies/comm_hooks.h"

namespace levin {
namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

/// A gradient as a matrix [n, m] and its factors, P [n, r] and Q [m, r]. Q is kept from step to step (warm start).
struct Factors {
  Tensor p, q;
};

struct PowerSgdState {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  int64_t rank = 1;
  int64_t start_iter = 1000;
  double min_compression_rate = 2;
  int64_t iteration = 0;
  /// By bucket: what compression has lost so far, and the factors.
  std::map<size_t, Tensor> errors;
  std::map<size_t, std::vector<Factors>> factors;
};

/// An orthonormal basis of the columns. QR in float32: stable where the columns are nearly parallel.
void orthogonalize(Tensor& matrix) {
  matrix.copy_(std::get<0>(at::linalg_qr(matrix.to(at::kFloat), "reduced")));
}

/// One step of subspace iteration on the mean of the ranks' gradients, at the cost of sending P and Q instead of M:
///     P = orthogonalize(mean(M Q));  Q = mean(M^T P);  M is about P Q^T
/// What P Q^T lacks of this rank's M is added to its next gradient (error feedback).
///
/// Runs in order, without callbacks: a second all-reduce that starts in the callback of a first one would meet the
/// buckets of other ranks in an order that nobody controls.
class PowerSgdHook : public c10d::CppCommHookInterface<PowerSgdState> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  Future runHook(c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer();
    if (state_.iteration < state_.start_iter) {
      average(buffer);
    } else {
      compress(bucket, buffer);
    }
    if (bucket.isLast()) ++state_.iteration;
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(c10::IValue(buffer));
    return future;
  }

 private:
  void sum(const Tensor& tensor) {
    std::vector<Tensor> tensors{tensor};
    state_.group->allreduce(tensors)->wait();
  }

  void average(const Tensor& tensor) {
    tensor.div_(state_.group->getSize());
    sum(tensor);
  }

  bool worth_compressing(int64_t n, int64_t m) const {
    const auto r = static_cast<double>(std::min({n, m, state_.rank}));
    return static_cast<double>(n + m) * r * state_.min_compression_rate < static_cast<double>(n * m);
  }

  void compress(c10d::GradBucket& bucket, Tensor& buffer) {
    const auto index = bucket.getIndex();
    auto& error = state_.errors[index];
    if (error.defined() && error.numel() == buffer.numel())
      buffer.add_(error);
    else
      error = at::empty_like(buffer);
    error.zero_();

    std::vector<Tensor> small, matrices, lost;
    int64_t offset = 0;
    for (auto& gradient : bucket.getGradients()) {
      const auto rows = gradient.dim() > 1 ? gradient.size(0) : 0;
      if (rows > 0 && worth_compressing(rows, gradient.numel() / rows)) {
        matrices.push_back(gradient.view({rows, -1}));
        lost.push_back(error.narrow(0, offset, gradient.numel()).view({rows, -1}));
      } else {
        small.push_back(gradient);
      }
      offset += gradient.numel();
    }
    average_small(small);
    auto& factors = state_.factors[index];
    prepare_factors(factors, matrices);

    std::vector<Tensor> ps, qs;
    for (size_t i = 0; i < matrices.size(); ++i) {
      at::mm_out(factors[i].p, matrices[i], factors[i].q);
      ps.push_back(factors[i].p);
      qs.push_back(factors[i].q);
    }
    all_reduce_together(ps);
    for (size_t i = 0; i < matrices.size(); ++i) {
      orthogonalize(factors[i].p);
      at::mm_out(factors[i].q, matrices[i].t(), factors[i].p);
      lost[i].copy_(matrices[i]).sub_(at::mm(factors[i].p, factors[i].q.t()));
    }
    all_reduce_together(qs);
    for (size_t i = 0; i < matrices.size(); ++i) {
      factors[i].q.div_(state_.group->getSize());
      at::mm_out(matrices[i], factors[i].p, factors[i].q.t());
    }
  }

  void average_small(const std::vector<Tensor>& small) {
    if (small.empty()) return;
    std::vector<Tensor> flat;
    for (const auto& tensor : small) flat.push_back(tensor.reshape({-1}));
    auto joined = at::cat(flat);
    average(joined);
    int64_t offset = 0;
    for (const auto& tensor : small) {
      tensor.copy_(joined.narrow(0, offset, tensor.numel()).view_as(tensor));
      offset += tensor.numel();
    }
  }

  /// One message for all factors.
  void all_reduce_together(std::vector<Tensor>& tensors) {
    if (tensors.empty()) return;
    std::vector<Tensor> flat;
    for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    auto joined = at::cat(flat);
    sum(joined);
    int64_t offset = 0;
    for (auto& tensor : tensors) {
      tensor.copy_(joined.narrow(0, offset, tensor.numel()).view_as(tensor));
      offset += tensor.numel();
    }
  }

  void prepare_factors(std::vector<Factors>& factors, const std::vector<Tensor>& matrices) {
    const bool fits =
        factors.size() == matrices.size() &&
        std::equal(factors.begin(), factors.end(), matrices.begin(), [](const Factors& f, const Tensor& m) {
          return f.p.size(0) == m.size(0) && f.q.size(0) == m.size(1);
        });
    if (!fits) {
      // The start is random, and the same on every rank without a message.
      factors.clear();
      auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(state_.iteration) + 1);
      for (const auto& matrix : matrices) {
        const auto r = std::min({matrix.size(0), matrix.size(1), state_.rank});
        auto q = at::randn({matrix.size(1), r}, generator).to(matrix.options());
        factors.push_back({at::empty({matrix.size(0), r}, matrix.options()), q});
      }
    }
    for (auto& factor : factors) orthogonalize(factor.q);
  }
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> detail::make_powersgd_hook(const DdpOptions& options, Collective& group) {
  PowerSgdState state;
  state.group = group.process_group();
  state.rank = options.powersgd_rank;
  state.start_iter = options.powersgd_start_iter;
  state.min_compression_rate = options.powersgd_min_compression_rate;
  return std::make_unique<PowerSgdHook>(std::move(state));
}

}  // namespace levin
