// Products by cuBLASLt. Its matrices are column-major, so it is asked for the transpose: N x M = b^T a^T.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Exceptions.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <dlfcn.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/linear/matmul_detail.h"

namespace levin::kernels::detail {
namespace {

// ---- cuBLASLt, as torch has loaded it: no second version of it can come into the process

struct CublasLt {
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_description = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtCreate) create_handle = nullptr;
  bool complete = true;

  CublasLt() {
    const auto name_of_library = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* library = ::dlopen(name_of_library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto find = [&](auto& function, const char* name) {
      function =
          library ? reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name)) : nullptr;
      complete = complete && function != nullptr;
    };
    find(matmul, "cublasLtMatmul");
    find(propose, "cublasLtMatmulAlgoGetHeuristic");
    find(create_description, "cublasLtMatmulDescCreate");
    find(set_attribute, "cublasLtMatmulDescSetAttribute");
    find(create_preference, "cublasLtMatmulPreferenceCreate");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(create_layout, "cublasLtMatrixLayoutCreate");
    find(create_handle, "cublasLtCreate");
  }
};

const CublasLt& lt() {
  static const CublasLt library;
  return library;
}

/// Of the current device, for all threads and the life of the process. Not torch's: that is a handle of cuBLAS, one for
/// each thread, and to ask for it takes 32 MiB of workspace.
cublasLtHandle_t handle() {
  static auto& handles = *new std::map<c10::DeviceIndex, cublasLtHandle_t>();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& found = handles[c10::cuda::current_device()];
  if (!found) TORCH_CUDABLAS_CHECK(lt().create_handle(&found));
  return found;
}

// ---- what is asked for

/// A matrix as cuBLASLt sees it: rows of `stride` numbers, of which the product takes the transpose or not.
struct Operand {
  Tensor kept;
  bool transposed = false;
  int64_t stride = 0;
};

Operand operand(const Tensor& x) {
  if (x.stride(1) == 1 && x.stride(0) >= x.size(1)) return {x, false, x.stride(0)};
  if (x.stride(0) == 1 && x.stride(1) >= x.size(0)) return {x, true, x.stride(1)};
  return {x.contiguous(), false, x.size(1)};
}

enum class Epilogue : uint8_t { kNone, kBias, kSums };

struct Product {
  Operand a, b;
  Tensor out;
  Epilogue epilogue = Epilogue::kNone;
  Tensor vector;     // the bias, or where sums go
  bool add = false;  // to what `out` holds
  /// Of float8: what the numbers of a and b are multiplied with, each [1].
  Tensor scale_a = {}, scale_b = {};
  /// Of float8: sums keep fewer bits on the way.
  bool fast = false;

  [[nodiscard]] bool is_scaled() const { return scale_a.defined(); }
};

cudaDataType_t data_type(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    case at::kBFloat16:
      return CUDA_R_16BF;
    default:
      levin::detail::fail(levin::detail::concat("[matmul] ", x.scalar_type(), " is not known to cuBLAS"));
  }
}

/// The largest power of two up to 256 that divides all addresses.
uint32_t alignment(const Product& product) {
  uintptr_t bits = 256;
  for (const auto* each : {&product.a.kept, &product.b.kept, &product.out, &product.vector})
    if (each->defined()) bits |= reinterpret_cast<uintptr_t>(each->const_data_ptr());
  return static_cast<uint32_t>(bits & (~bits + 1));
}

using Key = std::array<int64_t, 15>;

Key key_of(const Product& product) {
  const auto& a = product.a;
  const auto& b = product.b;
  return {product.out.get_device(),
          static_cast<int64_t>(a.kept.scalar_type()),
          static_cast<int64_t>(b.kept.scalar_type()),
          static_cast<int64_t>(product.out.scalar_type()),
          static_cast<int64_t>(product.fast),
          static_cast<int64_t>(product.epilogue),
          a.kept.size(0),
          a.kept.size(1),
          b.kept.size(1),
          2 * static_cast<int64_t>(a.transposed) + static_cast<int64_t>(b.transposed),
          a.stride,
          b.stride,
          product.out.stride(0),
          product.vector.defined() ? static_cast<int64_t>(product.vector.scalar_type()) : -1,
          alignment(product)};
}

// ---- how it is computed

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
};

/// Kept for the life of the process.
struct Plan {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, out = nullptr;
  /// As proposed; none where cuBLASLt has no kernel.
  std::vector<Algorithm> algorithms;
  size_t chosen = 0;
  bool measured = false;
  /// The description holds addresses of the last call.
  std::mutex mutex;
};

template <class T>
void set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, T value) {
  TORCH_CUDABLAS_CHECK(lt().set_attribute(plan.description, attribute, &value, sizeof(value)));
}

/// Addresses, which change from call to call.
void set_addresses(Plan& plan, const Product& product) {
  if (product.epilogue != Epilogue::kNone)
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.vector.const_data_ptr());
  if (!product.is_scaled()) return;
  set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.scale_b.const_data_ptr());
  set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.scale_a.const_data_ptr());
}

template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  TORCH_CUDABLAS_CHECK(lt().set_preference(preference, attribute, &value, sizeof(value)));
}

cublasLtMatrixLayout_t layout(const Tensor& x, int64_t stride, bool transposed) {
  cublasLtMatrixLayout_t made = nullptr;
  const auto rows = static_cast<uint64_t>(x.size(0)), columns = static_cast<uint64_t>(x.size(1));
  TORCH_CUDABLAS_CHECK(
      lt().create_layout(&made, data_type(x), transposed ? rows : columns, transposed ? columns : rows, stride));
  return made;
}

/// The best first, as cuBLASLt sees it.
std::vector<cublasLtMatmulHeuristicResult_t> proposals_of(const Plan& plan, const Product& product, size_t workspace) {
  cublasLtMatmulPreference_t preference = nullptr;
  TORCH_CUDABLAS_CHECK(lt().create_preference(&preference));
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // Parts of a sum are not rounded to 16 bits.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto each : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(preference, each, alignment(product));
  std::vector<cublasLtMatmulHeuristicResult_t> found(gemm_wish_of_environment() == GemmWish::kBest ? 16 : 8);
  int count = 0;
  const auto status = lt().propose(plan.handle, plan.description, plan.a, plan.b, plan.out, plan.out, preference,
                                   static_cast<int>(found.size()), found.data(), &count);
  lt().destroy_preference(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  std::erase_if(found, [](const auto& each) { return each.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

/// Whether the workspace is too small for parts of sums: it has the counter by which blocks take their tiles.
bool counts_tiles(const cublasLtMatmulHeuristicResult_t& proposal, const Product& product) {
  return proposal.workspaceSize > 0 &&
         proposal.workspaceSize < sizeof(float) * static_cast<size_t>(product.out.numel());
}

void prepare(Plan& plan, const Product& product) {
  if (!lt().complete) return;  // torch computes then
  plan.handle = handle();
  // Sums in float, as in every other kernel of Levin.
  TORCH_CUDABLAS_CHECK(lt().create_description(&plan.description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, product.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, product.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (product.epilogue != Epilogue::kNone) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE,
        product.epilogue == Epilogue::kBias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB);
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(product.vector));
  }
  if (product.fast) set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  set_addresses(plan, product);
  plan.a = layout(product.b.kept, product.b.stride, product.b.transposed);
  plan.b = layout(product.a.kept, product.a.stride, product.a.transposed);
  plan.out = layout(product.out, product.out.stride(0), false);

  const auto add = [&](const auto& proposals) {
    for (const auto& each : proposals) plan.algorithms.push_back({each.algo, each.workspaceSize});
  };
  const auto proposals = proposals_of(plan, product, at::cuda::getCUDABlasLtWorkspaceSize());
  if (!proposals.empty() && counts_tiles(proposals.front(), product)) add(proposals_of(plan, product, 0));
  add(proposals);
}

/// With the workspace that the algorithm needs and no more: where there is any, blocks take their tiles by a counter in
/// it, which a memset clears before the product. That takes 3 to 6 us in a graph, with what waits for it. Blocks that
/// know their tiles beforehand are as fast.
cublasStatus_t run(const Plan& plan, const Product& product, size_t algorithm) {
  const auto& [chosen, bytes] = plan.algorithms[algorithm];
  const float one = 1, kept = product.add ? 1 : 0;
  // Free for others when the product is on its stream: they come behind it.
  const auto workspace = bytes > 0 ? c10::cuda::CUDACachingAllocator::get()->allocate(bytes) : c10::DataPtr();
  void* out = product.out.mutable_data_ptr();
  return lt().matmul(plan.handle, plan.description, &one, product.b.kept.const_data_ptr(), plan.a,
                     product.a.kept.const_data_ptr(), plan.b, &kept, out, plan.out, out, plan.out, &chosen,
                     workspace.get(), bytes, c10::cuda::getCurrentCUDAStream().stream());
}

constexpr auto kNever = std::numeric_limits<float>::infinity();

/// Milliseconds of that many runs; kNever where the algorithm does not run after all.
float time_of_runs(const Plan& plan, const Product& product, size_t algorithm, int runs) {
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  begin.record();
  for (int i = 0; i < runs; ++i)
    if (run(plan, product, algorithm) != CUBLAS_STATUS_SUCCESS) return kNever;
  end.record();
  end.synchronize();
  return begin.elapsed_time(end);
}

/// The shortest time of one run.
float time_of(const Plan& plan, const Product& product, size_t algorithm) {
  constexpr int kRuns = 5;
  if (time_of_runs(plan, product, algorithm, 1) == kNever) return kNever;  // loads the kernel, too
  float best = kNever;
  for (int i = 0; i < kRuns; ++i) best = std::min(best, time_of_runs(plan, product, algorithm, 1));
  return best;
}

constexpr double kLarge = 1e10;

double operations_of(const Product& product) {
  return 2.0 * static_cast<double>(product.a.kept.numel()) * static_cast<double>(product.out.size(1));
}

/// The time of one of many runs in a row: long enough for the clock to fall to what the power allows.
float time_under_load(const Plan& plan, const Product& product, size_t algorithm, float once) {
  constexpr float kWarm = 6, kTimed = 10;  // milliseconds
  const auto runs = [&](float milliseconds) { return std::max(1, static_cast<int>(milliseconds / once)); };
  time_of_runs(plan, product, algorithm, runs(kWarm));
  return time_of_runs(plan, product, algorithm, runs(kTimed)) / static_cast<float>(runs(kTimed));
}

/// Of large products: those that are about as fast as the fastest in a short time meet under load; the others are
/// kNever.
std::vector<float> times_under_load(const Plan& plan, const Product& product, std::vector<float> times) {
  constexpr float kAboutAsFast = 1.1f;
  constexpr size_t kMost = 4;
  auto sorted = times;
  std::sort(sorted.begin(), sorted.end());
  const float bound = std::min(kAboutAsFast * sorted.front(), sorted[std::min(sorted.size(), kMost) - 1]);
  for (size_t i = 0; i < times.size(); ++i)
    times[i] = times[i] <= bound || i == 0 ? time_under_load(plan, product, i, std::max(times[i], 1e-3f)) : kNever;
  return times;
}

void measure(Plan& plan, const Product& product) {
  std::vector<float> times;
  for (size_t i = 0; i < plan.algorithms.size(); ++i) times.push_back(time_of(plan, product, i));
  if (*std::min_element(times.begin(), times.end()) == kNever) return plan.algorithms.clear();
  const bool large = operations_of(product) >= kLarge;
  if (large) times = times_under_load(plan, product, std::move(times));
  const float best = *std::min_element(times.begin(), times.end());
  // Within this part of the best, what is proposed first wins: a choice shall not hang on noise.
  const float within = large ? 1.01f : 1.02f;
  plan.chosen = static_cast<size_t>(
      std::find_if(times.begin(), times.end(), [&](float each) { return each <= within * best; }) - times.begin());
}

Plan& plan_of(const Product& product) {
  static auto& plans = *new std::map<Key, Plan>();  // for the life of the process
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = plans.try_emplace(key_of(product));
  if (is_new) prepare(found->second, product);
  return found->second;
}

/// Whether the algorithm is what was measured, not what is proposed first. Large products run at the limit of power,
/// where all proposals took the same time: they are measured on request. Two runs of a program may measure differently.
bool is_measured(const Product& product) {
  const auto wish = gemm_wish_of_environment();
  return (operations_of(product) < kLarge || wish == GemmWish::kBest) && wish != GemmWish::kFirst &&
         !at::globalContext().deterministicAlgorithms();
}

/// False where cuBLASLt has no kernel for it.
bool multiplied(const Product& product) {
  auto& plan = plan_of(product);
  const std::lock_guard lock(plan.mutex);
  if (plan.algorithms.empty()) return false;
  set_addresses(plan, product);
  const bool measured = is_measured(product);
  // To measure would add several times. What comes first is mostly not added, and of the same shape.
  if (measured && !plan.measured && !product.add) {
    // Nothing can be measured in a capture. What it takes stays, so that eager steps compute the same.
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None) measure(plan, product);
    plan.measured = true;
    if (plan.algorithms.empty()) return false;
  }
  TORCH_CUDABLAS_CHECK(run(plan, product, measured ? plan.chosen : 0));
  return true;
}

// ---- operators

void check(const Tensor& a, const Tensor& b, const Tensor& vector) {
  LEVIN_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type() &&
                  a.device() == b.device() && at::isReducedFloatingType(a.scalar_type()),
              "[matmul] needs 16-bit matrices [M, K] and [K, N] of one dtype and device, got ", a.sizes(), " ",
              a.scalar_type(), " and ", b.sizes(), " ", b.scalar_type());
  if (!vector.defined()) return;
  LEVIN_CHECK(vector.dim() == 1 && vector.size(0) == b.size(1) && vector.scalar_type() == a.scalar_type() &&
                  vector.device() == a.device(),
              "[matmul] needs a bias of ", b.size(1), " numbers of ", a.scalar_type(), ", got ", vector.sizes(), " ",
              vector.scalar_type());
}

Tensor by_torch(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  return dtype == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, dtype);
}

bool is_empty(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 || b.numel() == 0;
}

Tensor matmul_cuda(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, at::ScalarType dtype) {
  check(a, b, bias.value_or(Tensor()));
  const c10::cuda::CUDAGuard guard(a.device());
  if (!is_empty(a, b)) {
    Product product{operand(a), operand(b), at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype))};
    if (bias) product.epilogue = Epilogue::kBias, product.vector = bias->contiguous();
    if (multiplied(product)) return product.out;
  }
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // it is counted once
  return bias ? at::addmm(*bias, a, b) : by_torch(a, b, dtype);
}

std::tuple<Tensor, Tensor> matmul_and_sums_cuda(const Tensor& a, const Tensor& b, at::ScalarType dtype,
                                                at::ScalarType sums_dtype) {
  check(a, b, {});
  const c10::cuda::CUDAGuard guard(a.device());
  if (dtype != sums_dtype || is_empty(a, b))
    return {matmul_cuda(a, b, std::nullopt, dtype), column_sum(a.t(), sums_dtype)};
  Product product{operand(a), operand(b), at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype))};
  product.epilogue = Epilogue::kSums, product.vector = at::empty({a.size(0)}, product.out.options());
  if (multiplied(product)) return {product.out, product.vector};
  product.epilogue = Epilogue::kNone, product.vector.reset();
  const auto out = multiplied(product) ? product.out : by_torch(a, b, dtype);
  return {out, column_sum(a.t(), sums_dtype)};
}

void matmul_into_cuda(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  check(a, b, {});
  LEVIN_CHECK(out.dim() == 2 && out.size(0) == a.size(0) && out.size(1) == b.size(1) && out.device() == a.device() &&
                  (out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat),
              "[matmul_into] needs a result of [", a.size(0), ", ", b.size(1), "], ", a.scalar_type(),
              " or float, got ", out.sizes(), " ", out.scalar_type());
  const c10::cuda::CUDAGuard guard(a.device());
  const bool has_rows = out.stride(1) == 1 && out.stride(0) >= out.size(1);
  if (!is_empty(a, b) && has_rows && multiplied({.a = operand(a), .b = operand(b), .out = out, .add = add})) return;
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // it is counted once
  auto to = out;
  if (out.scalar_type() == a.scalar_type())
    add ? at::addmm_out(to, out, a, b) : at::mm_out(to, a, b);
  else
    add ? at::addmm_out(to, out, a, b, at::kFloat) : at::mm_out(to, a, b, at::kFloat);
}

}  // namespace

std::optional<Tensor> scaled_matmul(const Tensor& a, const Tensor& b, const ScaledProduct& how) {
  if (gemm_wish_of_environment() == GemmWish::kTorch || is_empty(a, b)) return std::nullopt;
  const c10::cuda::CUDAGuard guard(a.device());
  Product product{operand(a), operand(b), at::empty({a.size(0), b.size(1)}, a.options().dtype(how.dtype))};
  if (how.bias.defined()) product.epilogue = Epilogue::kBias, product.vector = how.bias.contiguous();
  product.scale_a = how.scale_a, product.scale_b = how.scale_b, product.fast = how.fast;
  return multiplied(product) ? std::optional(product.out) : std::nullopt;
}

void register_matmul_cuda(torch::Library& library) {
  library.impl("matmul_into", matmul_into_cuda);
  library.impl("matmul", matmul_cuda);
  library.impl("matmul_and_sums", matmul_and_sums_cuda);
}

}  // namespace levin::kernels::detail
