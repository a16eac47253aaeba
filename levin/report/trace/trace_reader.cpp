#include "levin/report/trace/trace_reader.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/report/trace/event_reader.h"
#include "levin/report/trace/json_cutter.h"

namespace levin::report {

TraceEvents read_trace_blocks(const std::string& name, const TraceBlocks& blocks) {
  EventReader reader;
  uint64_t count = 0;
  const auto fail_at = [&](const std::string& where, const Error& error) {
    levin::detail::fail(
        levin::detail::concat("[report] \"", shown(name), "\" is damaged in ", where, ": ", error.what()));
  };
  JsonCutter cutter(
      name,
      [&](std::string_view text) {
        ++count;
        try {
          reader.event(text);
        } catch (const Error& error) {
          fail_at(levin::detail::concat("event ", count), error);
        }
      },
      [&](std::string_view key, std::string_view text) {
        try {
          reader.member(key, text);
        } catch (const Error& error) {
          fail_at(levin::detail::concat("\"", shown(key), "\""), error);
        }
      });
  blocks([&](std::string_view block) { cutter.add(block); });
  cutter.finish();
  if (cutter.is_open()) reader.warn("the list of events has no end (]): what came after the last event is not there");
  auto trace = reader.finish();
  LEVIN_CHECK(!trace.host.empty() || !trace.device.empty() || !trace.calls.empty() || !trace.memory.empty(),
              "[report] \"", shown(name), "\" has no events of a profiler");
  return trace;
}

TraceEvents read_trace_text(std::string_view text, const std::string& name) {
  return read_trace_blocks(name, [&](const auto& add) { add(text); });
}

}  // namespace levin::report
