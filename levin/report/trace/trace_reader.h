#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// Reads a trace of the PyTorch profiler: JSON, or JSON in gzip or zstd. The file is read once and in blocks. A file
/// that is cut off, empty, damaged or no trace is an Error of one line that names it.
TraceEvents read_trace(const std::filesystem::path& path);

/// The text of a file, unpacked, in blocks.
void read_blocks(const std::filesystem::path& path, const std::function<void(std::string_view)>& add);

/// A trace in memory; `name` is what errors call it.
TraceEvents read_trace_text(std::string_view text, const std::string& name = "trace");

/// A trace in blocks, which `blocks` hands to what it is given.
using TraceBlocks = std::function<void(const std::function<void(std::string_view)>&)>;
TraceEvents read_trace_blocks(const std::string& name, const TraceBlocks& blocks);

}  // namespace levin::report
