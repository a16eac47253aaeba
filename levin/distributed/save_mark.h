#pragma once

#include <string>

#include "levin/distributed/process.h"

namespace levin {

/// While it lives, the launcher of this rank knows that a checkpoint is being written, and does not stop the rank in
/// the middle of it. Without a launcher it does nothing. Cheap; may be nested.
class SaveMark {
 public:
  SaveMark();

 private:
  detail::Fd file_;
};

namespace detail {

/// The variable that tells a rank the file to lock while it saves.
inline constexpr auto kSaveMarkVariable = "LEVIN_SAVE_MARK";

/// Whether a process holds the mark.
bool is_marked(const std::string& path);

}  // namespace detail
}  // namespace levin
