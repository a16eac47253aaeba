#pragma once

#include <string_view>

namespace levin {

/// Lines for people, on stderr, prefixed "levin: ". Levin prints little: what it decided for the user and what to look
/// at. Ranks other than 0 stay silent; `set_log_rank` says which one this process is.
void log_info(std::string_view line);
void log_warning(std::string_view line);
/// As log_warning, but only the first time this very line is given.
void warn_once(std::string_view line);

/// Which rank this process is (0 until something has joined a group).
void set_log_rank(int rank);

}  // namespace levin
