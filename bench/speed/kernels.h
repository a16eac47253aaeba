#pragma once

// Where the time of a step goes on the device: kernels by PyTorch's profiler, put into classes by their names.

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "bench/speed/work.h"

namespace levin::bench {

/// The class of a kernel by its name. The first word that the name contains, in any case, decides.
inline KernelClass kernel_class(std::string_view name) {
  using enum KernelClass;
  static constexpr std::pair<std::string_view, KernelClass> kWords[] = {
      // Before "cutlass" and "cudnn", which are in the names of some of them.
      {"flash", kAttention},
      {"fmha", kAttention},
      {"sdpa", kAttention},
      {"attention", kAttention},
      {"wgmma_product", kGemm},  // of Levin, with what follows a product in its name
      {"copyfunctor", kCopy},    // of lists of tensors
      // The fused steps of torch and Levin.
      {"multi_tensor_apply", kOptimizer},
      {"adam", kOptimizer},
      {"sgd_kernel", kOptimizer},
      {"cross_entropy", kLoss},
      {"softmax", kLoss},
      {"nll_loss", kLoss},
      // Before "nhwc" and "reduce".
      {"layer_norm", kNorm},
      {"layernorm", kNorm},
      {"batch_norm", kNorm},
      {"batchnorm", kNorm},
      {"bn_fw", kNorm},
      {"bn_bw", kNorm},
      {"rms_norm", kNorm},
      {"rmsnorm", kNorm},
      {"gammabeta", kNorm},
      {"cucompute", kNorm},
      {"rowwisemoments", kNorm},
      {"_norm_", kNorm},
      // Levin's own kernels of layer norm and batch norm.
      {"norm_forward", kNorm},
      {"norm_backward", kNorm},
      {"norm_weight", kNorm},
      {"statistics_kernel", kNorm},
      {"normalize_rows", kNorm},
      {"backward_sums_kernel", kNorm},
      {"backward_input_kernel", kNorm},
      {"pool", kOther},
      {"embedding", kOther},
      {"index", kOther},
      {"gather", kOther},
      // Before "gemm": a convolution can be an implicit one. Its changes of layout are part of it.
      {"fprop", kConvolution},
      {"dgrad", kConvolution},
      {"wgrad", kConvolution},
      {"implicit", kConvolution},
      {"convolve", kConvolution},
      {"conv2d", kConvolution},
      {"winograd", kConvolution},
      {"nhwc", kConvolution},
      {"nchw", kConvolution},
      {"cudnn", kConvolution},
      // Before "reduce": a product that is split over its inner dimension ends with a sum.
      {"gemm", kGemm},
      {"splitk", kGemm},
      {"nvjet", kGemm},
      {"cublas", kGemm},
      {"cutlass", kGemm},
      {"xmma", kGemm},
      {"matmul", kGemm},
      {"dot_kernel", kGemm},
      {"triton_tem", kGemm},
      // Before "elementwise": copies and fills are templates of it.
      {"memcpy", kCopy},
      {"memset", kCopy},
      {"copy", kCopy},
      {"catarray", kCopy},
      {"fill", kCopy},
      {"transpose", kCopy},
      {"cast_kernel", kCopy},
      {"amax_kernel", kCopy},
      {"pack_heads", kCopy},
      {"pack_sums", kCopy},
      {"reduce", kReduction},
      {"column_sum", kReduction},
      {"bias_grad", kReduction},
      {"triton_red", kReduction},
      {"triton_per", kReduction},
      {"prepend_token", kElementwise},
      {"elementwise", kElementwise},
      {"pointwise", kElementwise},
      {"triton_poi", kElementwise},
      {"gelu", kElementwise},
      {"relu", kElementwise},
      {"dropout", kElementwise},
      {"residual", kElementwise},
      {"activation_kernel", kElementwise},
      {"activation_sums", kElementwise},
      {"rotary", kElementwise},
  };
  std::string lower(name);
  for (auto& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [word, kind] : kWords)
    if (lower.find(word) != std::string::npos) return kind;
  return kOther;
}

struct KernelTime {
  std::string name;
  KernelClass kind = KernelClass::kOther;
  int64_t count = 0;
  double seconds = 0;
};

/// One run of a kernel, nanoseconds since the first one.
struct KernelRun {
  uint64_t begin = 0, end = 0;
  std::string name;
};

/// Kernels, copies and fills of some steps; times and counts are those of one step.
struct KernelProfile {
  std::vector<KernelTime> kernels;  // the largest first
  std::array<double, kKernelClasses> seconds{};
  std::array<double, kKernelClasses> counts{};
  /// All of them, and the time in which at least one ran.
  double sum = 0, busy = 0;
  int64_t steps = 1;
  /// Of all steps, in the order in which they began.
  std::vector<KernelRun> runs;
};

/// Runs `step` that many times under the profiler; `synchronize` waits for the device.
template <class Step, class Synchronize>
KernelProfile profile_kernels(Step&& step, Synchronize&& synchronize, int64_t steps) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  synchronize();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int64_t i = 0; i < steps; ++i) step();
  synchronize();
  const auto result = profiler::disableProfiler();

  KernelProfile profile;
  profile.steps = steps;
  std::map<std::string, KernelTime> by_name;
  for (const auto& event : result->events()) {
    // libkineto's numbers of copies, fills and kernels: GPU_MEMCPY, GPU_MEMSET, CONCURRENT_KERNEL.
    if (event.deviceType() != c10::kCUDA || event.activityType() < 3 || event.activityType() > 5) continue;
    auto& kernel = by_name[event.name()];
    ++kernel.count;
    kernel.seconds += 1e-9 * static_cast<double>(event.durationNs());
    profile.runs.push_back({event.startNs(), event.endNs(), event.name()});
  }
  const auto n = static_cast<double>(steps);
  for (auto& [name, kernel] : by_name) {
    kernel.name = name;
    kernel.kind = kernel_class(name);
    kernel.seconds /= n;
    profile.seconds[static_cast<size_t>(kernel.kind)] += kernel.seconds;
    profile.counts[static_cast<size_t>(kernel.kind)] += static_cast<double>(kernel.count) / n;
    profile.sum += kernel.seconds;
    profile.kernels.push_back(std::move(kernel));
  }
  std::sort(profile.kernels.begin(), profile.kernels.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  std::sort(profile.runs.begin(), profile.runs.end(),
            [](const KernelRun& a, const KernelRun& b) { return a.begin < b.begin; });
  const auto first = profile.runs.empty() ? 0 : profile.runs.front().begin;
  uint64_t until = 0;
  for (auto& run : profile.runs) {
    run.begin -= first, run.end -= first;
    if (run.end > until) profile.busy += 1e-9 * static_cast<double>(run.end - std::max(run.begin, until)) / n;
    until = std::max(until, run.end);
  }
  return profile;
}

/// A name that fits into a table: without arguments, template arguments cut, no bars.
inline std::string short_name(std::string name, size_t most = 90) {
  if (name.starts_with("void ")) name.erase(0, 5);
  for (const auto* noise : {"at::native::", "(anonymous namespace)::", "<unnamed>::"})
    for (auto at = name.find(noise); at != std::string::npos; at = name.find(noise)) name.erase(at, std::strlen(noise));
  std::replace(name.begin(), name.end(), '|', '/');
  return name.size() > most ? name.substr(0, most - 3) + "..." : name;
}

/// One line for each run of a kernel: when it began and how long it took, in microseconds, and its name.
inline std::string to_timeline(const KernelProfile& profile) {
  std::string text;
  for (const auto& run : profile.runs)
    fmt::format_to(std::back_inserter(text), "{:.3f} {:.3f} {}\n", static_cast<double>(run.begin) * 1e-3,
                   static_cast<double>(run.end - run.begin) * 1e-3, short_name(run.name, 120));
  return text;
}

/// Classes beside their limits, and the largest kernels. `step` is the time of a step without the profiler.
inline nlohmann::json to_json(const KernelProfile& profile, const Work& work, double step, size_t largest = 15) {
  auto classes = nlohmann::json::array(), kernels = nlohmann::json::array();
  for (size_t i = 0; i < kKernelClasses; ++i) {
    const auto& limit = work[static_cast<KernelClass>(i)];
    if (profile.seconds[i] == 0 && limit.seconds == 0) continue;
    classes.push_back({{"class", kKernelClassNames[i]},
                       {"ms", profile.seconds[i] * 1e3},
                       {"kernels", profile.counts[i]},
                       {"limit_ms", limit.seconds * 1e3},
                       {"flops", limit.flops},
                       {"bytes", limit.bytes}});
  }
  for (size_t i = 0; i < std::min(largest, profile.kernels.size()); ++i) {
    const auto& kernel = profile.kernels[i];
    kernels.push_back({{"name", kernel.name},
                       {"class", name_of(kernel.kind)},
                       {"count", static_cast<double>(kernel.count) / static_cast<double>(profile.steps)},
                       {"ms", kernel.seconds * 1e3}});
  }
  return {{"step_ms", step * 1e3},
          {"kernels_ms", profile.sum * 1e3},
          {"busy_ms", profile.busy * 1e3},
          {"classes", std::move(classes)},
          {"largest", std::move(kernels)}};
}

/// The same as two tables of a page.
inline std::string to_markdown(const std::string& title, const KernelProfile& profile, const Work& work, double step,
                               size_t largest = 15) {
  std::string text = fmt::format(
      "### {}\n\n| class | kernels a step | ms a step | of the step | limit, ms | over its limit |\n"
      "|---|---|---|---|---|---|\n",
      title);
  const auto row = [&](std::string_view name, double count, double seconds, double limit) {
    fmt::format_to(std::back_inserter(text), "| {} | {} | {:.3f} | {:.1f} % | {} | {} |\n", name,
                   count > 0 ? fmt::format("{:.0f}", count) : "", seconds * 1e3, seconds / step * 100,
                   limit > 0 ? fmt::format("{:.3f}", limit * 1e3) : "",
                   limit > 0 && seconds > 0 ? fmt::format("{:.2f}", seconds / limit) : "");
  };
  double count = 0, limit = 0;
  for (size_t i = 0; i < kKernelClasses; ++i) {
    const auto least = work[static_cast<KernelClass>(i)].seconds;
    count += profile.counts[i], limit += least;
    if (profile.counts[i] > 0 || least > 0) row(kKernelClassNames[i], profile.counts[i], profile.seconds[i], least);
  }
  row("no kernel", 0, std::max(step - profile.busy, 0.0), 0);
  row("**step**", count, step, limit);
  text += "\n| largest kernels | class | a step | ms a step |\n|---|---|---|---|\n";
  for (size_t i = 0; i < std::min(largest, profile.kernels.size()); ++i) {
    const auto& kernel = profile.kernels[i];
    fmt::format_to(std::back_inserter(text), "| `{}` | {} | {:.0f} | {:.3f} |\n", short_name(kernel.name),
                   name_of(kernel.kind), static_cast<double>(kernel.count) / static_cast<double>(profile.steps),
                   kernel.seconds * 1e3);
  }
  return text;
}

}  // namespace levin::bench
