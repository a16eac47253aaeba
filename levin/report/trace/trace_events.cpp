#include "levin/report/trace/trace_events.h"

namespace levin::report {

uint32_t Names::add(std::string_view text) {
  if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
  const auto added = numbers_.emplace(std::string(text), static_cast<uint32_t>(texts_.size())).first;
  texts_.push_back(&added->first);
  return added->second;
}

uint32_t Names::find(std::string_view text) const {
  const auto found = numbers_.find(text);
  return found == numbers_.end() ? kNone : found->second;
}

}  // namespace levin::report
