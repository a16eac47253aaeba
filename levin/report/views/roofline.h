#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/report/views/device_view.h"

namespace levin::report {

/// A kernel of an operator whose shapes are known, against what the device could do.
struct RooflinePoint {
  uint32_t name = 0, operator_name = 0;
  uint64_t calls = 0;
  Ns total = 0;
  double flops = 0, bytes = 0;
  double roof_tflops = 0;
  bool is_compute_bound = false;

  double intensity() const { return flops / bytes; }
  double tflops() const { return flops / static_cast<double>(total) / 1e3; }
  double gbps() const { return bytes / static_cast<double>(total); }
};

struct Roofline {
  double peak_tflops = 0, peak_gbps = 0;
  std::string precision;
  std::vector<RooflinePoint> points;

  double ridge() const { return peak_tflops * 1e3 / peak_gbps; }
};

/// FLOPs of a step against the peak of the device.
struct Mfu {
  double flops_per_step = 0, step_us = 0, peak_tflops = 0;
  std::string device, precision;

  double achieved_tflops() const { return flops_per_step / step_us / 1e6; }
};

/// bf16, tf32 or fp32: what most of the time of matrix products is in.
std::string precision_of(const TraceEvents& trace, const OpTree& tree, const TensorCoreTimes& times);
/// None without shapes, or for a device that is not known.
std::optional<Roofline> view_roofline(const TraceEvents& trace, const OpTree& tree, const TensorCoreTimes& times);
std::optional<Mfu> view_mfu(const TraceEvents& trace, const OpTree& tree, const StepView& steps,
                            const TensorCoreTimes& times);

/// TFLOP/s of dense products in a precision; none for a device that is not known.
std::optional<double> peak_tflops(const std::string& device, const std::string& precision);
/// GB/s of device memory; none for a device that is not known.
std::optional<double> peak_gbps(const std::string& device);

}  // namespace levin::report
