#pragma once

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// Ties the sorted events of a trace to each other: device work to the calls that launched it, calls to the operators
/// that made them, kernels to their collectives, memory to its device. What is not clear from the trace is said in its
/// warnings.
void tie_events(TraceEvents& trace);

/// Whether a kernel with this name moves data between devices: those of NCCL and RCCL, and what does without them.
bool is_communication_kernel(std::string_view name);

}  // namespace levin::report
