#include "levin/planner/cluster_shape.h"

#include <algorithm>
#include <charconv>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/devices/peak_flops.h"
#include "levin/report/views/roofline.h"

namespace levin::planner {
namespace {

/// FLOP/s and bandwidth of memory are in the tables of devices/ and report/. Links are of the machines that are sold
/// with that GPU: HGX with one network card per GPU, or PCIe.
struct Row {
  const char* name;
  const char* device;
  double memory_gb;
  int64_t multiprocessors;
  double inside_gbps, between_gbps, host_gbps;
  /// Of the peak. Products on an H200 were measured at 0.66 to 0.80 of it (docs/performance.md).
  double sustained = 0.68;
};
constexpr Row kRows[] = {
    {"a100", "NVIDIA A100", 80, 108, 300, 25, 25, 0.84},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 40, 108, 300, 25, 25, 0.84},
    {"a800", "NVIDIA A800", 80, 108, 200, 25, 25, 0.84},
    {"h100", "NVIDIA H100", 80, 132, 450, 50, 55},
    {"h800", "NVIDIA H800", 80, 132, 200, 50, 55},
    {"h200", "NVIDIA H200", 141, 132, 450, 50, 55},
    {"b200", "NVIDIA B200", 180, 148, 900, 50, 55},
    {"v100", "NVIDIA V100", 32, 80, 150, 12.5, 12, 0.78},
    {"l40s", "NVIDIA L40S", 48, 142, 25, 12.5, 25},
    {"a10g", "NVIDIA A10G", 24, 80, 12, 3, 12},
    {"a6000", "NVIDIA A6000", 48, 84, 25, 12.5, 25},
    {"l4", "NVIDIA L4", 24, 58, 12, 3, 12},
    {"rtx-4090", "NVIDIA RTX 4090", 24, 128, 20, 3, 25},
    {"rtx-3090", "NVIDIA RTX 3090", 24, 82, 20, 3, 25},
};

}  // namespace

ClusterShape cluster_of(const std::string& gpu, int64_t gpus, double memory, int64_t gpus_per_node) {
  LEVIN_CHECK(gpus >= 1 && gpus <= 1 << 20, "[levin plan] --gpus ", gpus, " is not allowed (1 to ", 1 << 20, ")");
  LEVIN_CHECK(gpus_per_node >= 1 && gpus_per_node <= 1024, "[levin plan] --gpus-per-node ", gpus_per_node,
              " is not allowed (1 to 1024)");
  // Ranks are started node by node: each node has as many.
  LEVIN_CHECK(gpus <= gpus_per_node || gpus % gpus_per_node == 0, "[levin plan] --gpus ", gpus,
              " are no whole nodes of ", gpus_per_node, "; take ", gpus / gpus_per_node * gpus_per_node, " or ",
              (gpus / gpus_per_node + 1) * gpus_per_node, ", or say --gpus-per-node");
  const auto* row = std::ranges::find_if(kRows, [&](const Row& r) { return equal_ignoring_case(gpu, r.name); });
  if (row == std::end(kRows)) fail_unknown("levin plan", "--gpu", gpu, known_gpus());
  const double peak = peak_flops(row->device, c10::ScalarType::BFloat16).value();
  return {.gpu = row->name,
          .gpus = gpus,
          .gpus_per_node = std::min(gpus, gpus_per_node),
          .memory = memory > 0 ? memory : row->memory_gb * 1e9,
          .peak_flops = peak,
          .memory_bandwidth = report::peak_gbps(row->device).value() * 1e9,
          .sustained_flops = peak * row->sustained,
          .multiprocessors = row->multiprocessors,
          .inside = {row->inside_gbps * 1e9, 4e-6},
          .between = {row->between_gbps * 1e9, 12e-6},
          .host_link = row->host_gbps * 1e9};
}

std::vector<std::string> known_gpus() {
  std::vector<std::string> all;
  for (const auto& row : kRows) all.emplace_back(row.name);
  return all;
}

double link_bandwidth(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  LEVIN_CHECK(error == std::errc() && value > 0 && value < 1e6 && (unit == "Gb" || unit == "GB"),
              "[levin plan] link \"", shown(text),
              "\" is no bandwidth (200Gb: bits, or 25GB: bytes, per second and GPU)");
  return unit == "Gb" ? value * 1e9 / 8 : value * 1e9;
}

}  // namespace levin::planner
