#include "levin/report/views/roofline.h"

#include <algorithm>
#include <array>
#include <map>

#include "levin/devices/peak_flops.h"
#include "levin/report/views/flops.h"

namespace levin::report {
namespace {

struct Bandwidth {
  std::string_view name;
  double gbps;
};
// Of device memory, from the makers' data sheets. More special names stand first.
constexpr std::array kBandwidths{
    Bandwidth{"GH200", 4900},
    Bandwidth{"B200", 8000},
    Bandwidth{"H200", 4800},
    Bandwidth{"H100 PCIe", 2000},
    Bandwidth{"H100 NVL", 3900},
    Bandwidth{"H100", 3350},
    Bandwidth{"H800", 3350},
    Bandwidth{"H20", 4000},
    Bandwidth{"A100-SXM4-40", 1555},
    Bandwidth{"A100-PCIE-40", 1555},
    Bandwidth{"A100", 2039},
    Bandwidth{"A800", 2039},
    Bandwidth{"A6000", 768},
    Bandwidth{"A40", 696},
    Bandwidth{"A30", 933},
    Bandwidth{"A10G", 600},
    Bandwidth{"A10", 600},
    Bandwidth{"L40", 864},
    Bandwidth{"L4", 300},
    Bandwidth{"RTX 5090", 1792},
    Bandwidth{"RTX 4090", 1008},
    Bandwidth{"RTX 3090", 936},
    Bandwidth{"V100", 900},
    Bandwidth{"T4", 320},
    Bandwidth{"P100", 732},
};

std::string device_of(const TraceEvents& trace) {
  for (const auto& info : trace.devices) {
    for (const auto& event : trace.device) {
      if (event.device == info.id) return info.name;
    }
  }
  return {};
}

constexpr size_t kMostPoints = 50;

}  // namespace

std::optional<double> peak_gbps(const std::string& device) {
  for (const auto& row : kBandwidths) {
    if (device.find(row.name) != std::string::npos) return row.gbps;
  }
  return std::nullopt;
}

std::optional<double> peak_tflops(const std::string& device, const std::string& precision) {
  const bool is_half = precision == "bf16" || precision == "fp16";
  const auto dtype = is_half ? c10::ScalarType::Half : c10::ScalarType::Float;
  const auto flops = peak_flops(device, dtype, precision == "tf32");
  if (!flops || *flops <= 0) return std::nullopt;
  return *flops / 1e12;
}

std::string precision_of(const TraceEvents& trace, const OpTree& tree, const TensorCoreTimes& times) {
  FlopCounter flops(trace);
  double half = 0, full = 0;
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    if (!tree.nodes[i].is_listed || tree.nodes[i].device_self == 0) continue;
    const auto count = flops.of(trace.host[i]);
    const auto cost = count ? flops.cost(trace.host[i]) : std::nullopt;
    if (!cost) continue;
    (cost->element_bytes <= 2 ? half : full) += *count;
  }
  // Volta and Turing have tensor cores for float16 alone.
  const bool is_old = !trace.is_amd && !trace.devices.empty() && trace.devices[0].major == 7;
  const char* const sixteen = is_old ? "fp16" : "bf16";
  if (half > full) return sixteen;
  return times.of_eligible_used * 2 > times.of_eligible ? (full > 0 ? "tf32" : sixteen) : "fp32";
}

std::optional<Roofline> view_roofline(const TraceEvents& trace, const OpTree& tree, const TensorCoreTimes& times) {
  const auto device = device_of(trace);
  const auto gbps = peak_gbps(device);
  Roofline view{.precision = precision_of(trace, tree, times)};
  const auto tflops = peak_tflops(device, view.precision);
  if (!gbps || !tflops) return std::nullopt;
  view.peak_gbps = *gbps;
  view.peak_tflops = *tflops;
  // The cost of an operator goes to its longest kernel: the others are helpers (splits of a product, transposes).
  struct Main {
    uint32_t name = 0;
    Ns longest = 0, total = 0;
  };
  std::map<uint32_t, Main> by_operator;
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel || event.is_communication) continue;
    const auto owner = owner_of(trace, tree, event);
    if (owner == kNone || trace.host[owner].shapes == 0) continue;
    auto& main = by_operator[owner];
    main.total += event.duration;
    if (event.duration <= main.longest) continue;
    main.longest = event.duration;
    main.name = event.name;
  }
  FlopCounter flops(trace);
  std::map<std::pair<uint32_t, uint32_t>, RooflinePoint> points;
  for (const auto& [owner, main] : by_operator) {
    const auto cost = flops.cost(trace.host[owner]);
    if (!cost || main.total == 0) continue;
    auto& point = points[{main.name, trace.host[owner].name}];
    point.name = main.name;
    point.operator_name = trace.host[owner].name;
    ++point.calls;
    point.total += main.total;
    point.flops += cost->flops;
    point.bytes += cost->bytes;
  }
  for (auto& [key, point] : points) {
    point.is_compute_bound = point.intensity() >= view.ridge();
    point.roof_tflops = std::min(view.peak_tflops, point.intensity() * view.peak_gbps / 1e3);
    view.points.push_back(point);
  }
  std::stable_sort(view.points.begin(), view.points.end(),
                   [](const RooflinePoint& a, const RooflinePoint& b) { return a.total > b.total; });
  if (view.points.size() > kMostPoints) view.points.resize(kMostPoints);
  if (view.points.empty()) return std::nullopt;
  return view;
}

std::optional<Mfu> view_mfu(const TraceEvents& trace, const OpTree& tree, const StepView& steps,
                            const TensorCoreTimes& times) {
  const auto device = device_of(trace);
  const auto precision = precision_of(trace, tree, times);
  const auto peak = peak_tflops(device, precision);
  if (!peak || steps.average_total <= 0) return std::nullopt;
  FlopCounter flops(trace);
  double sum = 0;
  Ns counted = 0;
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    const auto& span = trace.host[i];
    if (flops.of(span)) counted += tree.nodes[i].device_total;
    if (!tree.nodes[i].is_listed || span.start < steps.steps.front().host_start ||
        span.start >= steps.steps.back().host_end)
      continue;
    sum += flops.of(span).value_or(0);
  }
  // Where most products have no known FLOPs the figure would be far too low.
  if (sum <= 0 || 2 * counted < times.of_eligible) return std::nullopt;
  return Mfu{.flops_per_step = sum / static_cast<double>(steps.steps.size()),
             .step_us = steps.average_total / 1e3,
             .peak_tflops = *peak,
             .device = device,
             .precision = precision};
}

}  // namespace levin::report
