#include "levin/report/trace_reader.h"

#include <functional>
#include <span>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/decompress.h"
#include "levin/report/event_reader.h"
#include "levin/report/json_cutter.h"

namespace levin::report {
namespace {

using Blocks = std::function<void(const std::function<void(std::string_view)>&)>;

TraceEvents read_blocks(const std::string& name, const Blocks& blocks) {
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

}  // namespace

TraceEvents read_trace_text(std::string_view text, const std::string& name) {
  return read_blocks(name, [&](const auto& add) { add(text); });
}

TraceEvents read_trace(const std::filesystem::path& path) {
  const FileReader file(path);
  return read_blocks(path.string(), [&](const std::function<void(std::string_view)>& add) {
    const auto each = [&](std::span<const std::byte> block) {
      add({reinterpret_cast<const char*>(block.data()), block.size()});
    };
    const auto kind = levin::detail::compression_of(file);
    if (kind != levin::detail::Compression::kNone) return levin::detail::decompress(file, kind, each);
    levin::detail::BlockReader blocks(file);
    for (auto block = blocks.next(); !block.empty(); block = blocks.next()) each(block);
  });
}

}  // namespace levin::report
