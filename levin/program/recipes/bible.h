#pragma once

#include <string>
#include <string_view>

namespace levin::cli {

/// Where Debian's package bible-kjv-text puts its text.
inline constexpr const char* kBibleFile = "/usr/lib/bible.data";

/// The plain text of that file's content: a verse a line, without its number, and an empty line between two chapters.
/// The file is a table of places, then a stream of the program `compress`.
std::string bible_text(std::string_view data);

/// What the program `compress` wrote: LZW with codes of 9 to 16 bits.
std::string decompress_lzw(std::string_view data);

/// The first chapters in the same form: for machines without the package.
std::string_view bible_excerpt();

}  // namespace levin::cli
