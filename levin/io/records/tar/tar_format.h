#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "levin/io/records/record_window.h"

/// Tar archives: USTAR, PAX and GNU's long names. Nothing here knows records or tensors.
namespace levin::detail {

/// A regular file of an archive and where its bytes lie.
struct TarMember {
  std::string name;
  uint64_t offset = 0;
  uint64_t size = 0;
};

/// Walks over the headers and hands on every regular file, in order. What is wrong is an Error with `where` and the
/// byte; every member that is handed on lies within the file.
void scan_tar(const ReadAt& read, uint64_t file_size, std::string_view where,
              const std::function<void(TarMember&&)>& each);

/// How WebDataset reads a name: "a/b.seg.PNG" is the part "seg.PNG" of the sample "a/b". Nothing for names that are of
/// no sample: "__meta__", "__meta__/x.txt", names without a dot.
struct TarName {
  std::string_view key, extension;
};
std::optional<TarName> split_tar_name(std::string_view name);

/// The header blocks of a regular file: USTAR where name and size fit, PAX before it where they do not.
std::string tar_header(std::string_view name, uint64_t size);
/// How many zero bytes follow a content of that size.
inline uint64_t tar_padding(uint64_t size) {
  return (512 - size % 512) % 512;
}

}  // namespace levin::detail
