#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

/// [..., P, M] and [..., R, M] to [..., P, R].
void cdist(ShapeCall& call) {
  const auto &a = call.tensor("x1"), &b = call.tensor("x2");
  auto sizes = at::infer_size(a.sizes().slice(0, static_cast<size_t>(a.dim() - 2)),
                              b.sizes().slice(0, static_cast<size_t>(b.dim() - 2)));
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  // Euclidean distances of many points are a product of matrices with two more columns.
  const bool asked = call.has("compute_mode") && call.integer("compute_mode") != 0;
  const bool by_product =
      call.number("p") == 2 && (asked ? call.integer("compute_mode") == 1 : a.size(-2) > 25 || b.size(-2) > 25);
  if (by_product)
    for (const auto* each : {&a, &b}) {
      auto wide = each->sizes().vec();
      wide.back() += 2;
      call.scratch(std::move(wide), each->scalar_type());
    }
  call.result(std::move(sizes), a);
}
void pdist(ShapeCall& call) {
  const auto& x = call.tensor();
  call.result({x.size(0) * (x.size(0) - 1) / 2}, x);
}

void product_sum(ShapeCall& call) {
  call.result({call.tensor("batch1").size(1), call.tensor("batch2").size(2)}, call.tensor());
}

void triangular(ShapeCall& call) {
  const auto &a = call.tensor(), &b = call.tensor("B");
  auto sizes = at::infer_size(a.sizes().slice(0, static_cast<size_t>(a.dim() - 2)),
                              b.sizes().slice(0, static_cast<size_t>(b.dim() - 2)));
  sizes.push_back(b.size(-2));
  sizes.push_back(b.size(-1));
  call.result(std::move(sizes), b);
}

void eigen(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto dtype = c10::toComplexType(x.scalar_type());
  call.result(Sizes(x.sizes().begin(), x.sizes().end() - 1), dtype);
  call.result(x.sizes().vec(), dtype);
}

void eigenvalues(ShapeCall& call) {
  const auto& x = call.tensor();
  call.result(Sizes(x.sizes().begin(), x.sizes().end() - 1), c10::toComplexType(x.scalar_type()));
}

/// Sums of the matrices of a batch, as many as there are rows of coefficients.
void combinations(ShapeCall& call) {
  auto sizes = call.tensor("input").sizes().vec();
  sizes[0] = call.tensor("coefficients").size(0);
  call.result(std::move(sizes), call.tensor("input"));
}

void geqrf(ShapeCall& call) {
  const auto& x = call.tensor();
  Sizes tau(x.sizes().begin(), x.sizes().end() - 2);
  tau.push_back(std::min(x.size(-1), x.size(-2)));
  call.result(x.sizes().vec(), x);
  call.result(std::move(tau), x);
}

// ---- Fourier transforms

void real_to_complex(ShapeCall& call) {
  const auto& x = call.tensor();
  auto sizes = x.sizes().vec();
  const auto dims = call.ints("dim");
  if (call.flag("onesided") && !dims.empty()) {
    auto& last = sizes[static_cast<size_t>(c10::maybe_wrap_dim(dims.back(), x.dim()))];
    last = last / 2 + 1;
  }
  call.result(std::move(sizes), c10::toComplexType(x.scalar_type()));
}
void complex_to_real(ShapeCall& call) {
  const auto& x = call.tensor();
  auto sizes = x.sizes().vec();
  const auto dims = call.ints("dim");
  if (!dims.empty())
    sizes[static_cast<size_t>(c10::maybe_wrap_dim(dims.back(), x.dim()))] = call.integer("last_dim_size");
  if (dims.size() > 1) call.scratch_like(x);
  call.result(std::move(sizes), c10::toRealValueType(x.scalar_type()));
}

void complex_of(ShapeCall& call, std::string_view a, std::string_view b) {
  broadcasts(a, b, c10::toComplexType(call.tensor(a).scalar_type()))(call);
}

}  // namespace

std::span<const ShapeRule> linear_algebra_shapes() {
  static const std::vector<ShapeRule> rules{
      {"_cdist_forward", cdist},
      {"_cdist_backward", contiguous_likes({"x1"})},
      {"_pdist_forward", pdist},
      {"_pdist_backward", contiguous_likes({"self"})},
      {"addbmm", product_sum},
      {"linalg_matrix_exp", contiguous_likes({"self"})},
      {"linalg_householder_product", contiguous_likes({"input"})},
      {"linalg_solve_triangular", triangular},
      {"linalg_eig", eigen},
      {"linalg_eigvals", eigenvalues},
      {"_linalg_eigvals", eigenvalues},
      {"linalg_lstsq", writes_arguments},
      {"_compute_linear_combination", combinations},
      {"_cholesky_solve_helper", contiguous_likes({"self"})},
      {"cholesky", contiguous_likes({"self"})},
      {"cholesky_inverse", contiguous_likes({"self"})},
      {"geqrf", geqrf},
      {"ormqr", contiguous_likes({"input3"})},
      {"_fft_r2c", real_to_complex},
      {"_fft_c2r", complex_to_real},
      {"_fft_c2c", contiguous_likes({"self"})},
      {"complex", [](ShapeCall& call) { complex_of(call, "real", "imag"); }},
      {"polar", [](ShapeCall& call) { complex_of(call, "abs", "angle"); }},
  };
  return rules;
}

}  // namespace levin::detail
