#pragma once

#include <string_view>

namespace levin::detail {

/// What a clone without Git LFS leaves in the place of a large file: a few lines of text that name it.
constexpr bool is_lfs_pointer(std::string_view content) {
  return content.starts_with("version https://git-lfs.github.com/spec/");
}

/// For an error, behind the name of the file.
inline constexpr std::string_view kIsLfsPointer =
    " is a pointer of Git LFS, not the file itself; `git lfs pull` in its folder fetches it";

}  // namespace levin::detail
