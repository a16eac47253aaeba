#include "levin/report/trace/sources.h"

namespace levin::report {

const std::vector<std::pair<std::string_view, std::string_view>>& number_sources() {
  static const std::vector<std::pair<std::string_view, std::string_view>> sources{
      {"overview", "mean over the steps of `steps`"},
      {"overview.categories",
       "each moment of a step counts once, for the first that covers it: kernels, copies (gpu_memcpy), fills "
       "(gpu_memset), collectives (nccl:, gloo: and kernels named nccl), runtime and driver calls, "
       "enumerate(DataLoader)# spans, operators (cpu_op), nothing of these"},
      {"steps", "spans ProfilerStep#n of the host, longer until the device work launched in them is done"},
      {"gpu_summary.utilization_percent",
       "union of the kernel spans of the device, of the time from first to last step"},
      {"gpu_summary.sm_efficiency_percent",
       "`blocks per SM` of the kernels that run at a moment, at most 1, over the time from first to last step"},
      {"gpu_summary.achieved_occupancy_percent",
       "`est. achieved occupancy %` of kernels, weighted by their time in the steps"},
      {"gpu_summary.tensor_core_time_percent", "time of kernels of operators whose names are those of tensor cores"},
      {"gpu_summary.peak_allocated_bytes",
       "largest `Total Allocated` of the [memory] instants of the device; sums of `Bytes` where all are 0"},
      {"gpu_summary.utilization_curve", "kernel spans in buckets of the span `PyTorch Profiler (0)`"},
      {"tensor_cores.time_percent", "kernels of operators: time with names of tensor cores, of all their time"},
      {"tensor_cores.eligible_percent",
       "kernels of the lowest operators that could use tensor cores, of those of all operators"},
      {"tensor_cores.kernel_time_percent", "all kernels: time with names of tensor cores, of all their time"},
      {"recommendations", "the line `evidence` names the spans; `cost_ms` is a mean over the steps"},
      {"operators",
       "cpu_op spans; device time is that of the work their runtime calls launched (External id, correlation)"},
      {"operators.host_self_us", "the span less the operators in it and its own runtime calls"},
      {"operators.device_self_us", "sum of kernels, copies and fills that its own runtime calls launched"},
      {"operators.flops", "matrix products, convolutions and attention, by `Input Dims` and `Concrete Inputs`"},
      {"kernels", "kernel spans; means of blocks and occupancy are weighted by time"},
      {"transfers", "gpu_memcpy and gpu_memset spans, `bytes` of their arguments"},
      {"memory.devices",
       "[memory] instants: `Total Allocated` (sums of `Bytes` where all are 0), `Total Reserved`, `Bytes`, `Addr`"},
      {"memory.devices.statistics", "an instant belongs to the deepest operator of its thread at its time"},
      {"memory.per_unit", "[memory] instants inside the spans of units"},
      {"modules", "spans nn.Module: NAME; backward work by the sequence number of its forward"},
      {"trace", "all spans of threads and streams"},
      {"roofline",
       "kernels of operators with `Input Dims`; inputs are read once, outputs written once; peaks of data sheets"},
      {"idle", "time of the steps in which no kernel, copy or fill runs; the cause is what the host did then"},
      {"launches",
       "calls of the runtime that launched work: the span of the call; the delay is from its end to the start of the "
       "(first) work; it waits in the queue from the start of the call"},
      {"annotations", "spans user_annotation, and the work that calls of the runtime inside them launched"},
      {"critical_path", "from the end of the step of medium length back over what each piece waited for"},
      {"mfu", "FLOPs of the operators in the steps, of the mean step time and the peak of the data sheet"},
      {"what_if",
       "the mean step less the time of its part; bf16: products without tensor cores by the ratio of peaks, at most 4"},
      {"distributed.waiting",
       "the n-th collective of all ranks: the shortest is the transfer, the rest of the others is waiting; "
       "tb_compat_: with the span on the host beside the kernels"},
      {"distributed.overlap",
       "unions of kernels (operators without a device) and of collectives, and what they have in common"},
  };
  return sources;
}

}  // namespace levin::report
