#pragma once

#include <filesystem>
#include <string>

#include "levin/profilers/stacks/stacks.h"
#include "levin/profilers/unit_spans.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace levin::detail {

/// Writes a recording as a Chrome trace, with gzip where the name ends so. Kineto writes a recording once only.
///
/// Spans of units become what tools know as modules: category "python_function" with "Python id", "Python parent id"
/// and "Python module id"; "Unit" has the path. Their operators of backward, which `units` tells, get spans
/// "nn.Module backward: Linear_0". Operators with a stack get a "Call stack".
void write_trace(torch::autograd::profiler::ProfilerResult& result, const AllUnitCalls& units,
                 const EventStacks& stacks, const std::filesystem::path& path);

/// "<worker>.<nanoseconds>.pt.trace.json[.gz]", a name that no other file of this process has.
std::string trace_file_name(const std::string& worker, bool gzip);

}  // namespace levin::detail
