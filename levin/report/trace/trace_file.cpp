#include <span>

#include "levin/core/files.h"
#include "levin/io/decompress.h"
#include "levin/report/trace/trace_reader.h"

namespace levin::report {

void read_blocks(const std::filesystem::path& path, const std::function<void(std::string_view)>& add) {
  const FileReader file(path);
  const auto each = [&](std::span<const std::byte> block) {
    add({reinterpret_cast<const char*>(block.data()), block.size()});
  };
  const auto kind = levin::detail::compression_of(file);
  if (kind != levin::detail::Compression::kNone) return levin::detail::decompress(file, kind, each);
  levin::detail::BlockReader blocks(file);
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) each(block);
}

TraceEvents read_trace(const std::filesystem::path& path) {
  return read_trace_blocks(path.string(),
                           [&](const std::function<void(std::string_view)>& add) { read_blocks(path, add); });
}

}  // namespace levin::report
