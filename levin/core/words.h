#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// The known word that is nearest to `word` by edit distance, or empty when none is near enough to be meant.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

/// "AdamW" equals "adamw": ASCII letters of either case are the same.
bool equal_ignoring_case(std::string_view a, std::string_view b);

/// "a, b, c"
std::string join(std::span<const std::string> words, std::string_view separator = ", ");

/// A name or text from a file, for a line that people read. What a terminal would obey (control characters) and bytes
/// that are no UTF-8 become '?'.
std::string printable(std::string_view text);
/// The same for an error: after 200 bytes comes "...".
std::string shown(std::string_view text);

/// Bytes of the character of a text in UTF-8 at `at`; 0 where there is none, and in `broken` the bytes of its longest
/// broken part.
size_t utf8_character(std::string_view text, size_t at, size_t& broken);
/// Bytes of the longest prefix that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);
/// Throws an Error that names the byte where a line is not UTF-8; its number is in `where`.
void check_utf8_line(std::string_view line, std::string_view where);
/// Throws an Error that names the line and the byte where a text is not UTF-8: `where` is the text, "[data] \"a.txt\"".
void check_utf8(std::string_view text, std::string_view where);

/// Throws the error for a value that is not one of the known ones: option, value, nearest, all known.
[[noreturn]] void fail_unknown(std::string_view operation, std::string_view option, std::string_view value,
                               std::span<const std::string> known);

/// "1.5 GB", "12.3 MB", "512 B": decimal units, three significant digits.
std::string format_bytes(double bytes);

/// "1.2M", "340k", "86.6M": counts for people.
std::string format_count(double count);

/// "0:42", "1:02:03": durations for progress lines.
std::string format_duration(double seconds);

}  // namespace levin
