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
  return reader.finish();
}

TraceEvents read_trace_text(std::string_view text, const std::string& name) {
  return read_trace_blocks(name, [&](const auto& add) { add(text); });
}

}  // namespace levin::report
