#include "levin/trainer/callbacks/checkpointing/checkpoint_name.h"

#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin {
namespace {

bool is_one_of(char c, std::string_view letters) {
  return letters.find(c) != std::string_view::npos;
}

/// As Python writes a float: 3.0 keeps its point.
std::string plain_number(double value) {
  auto text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string format_number(double value, bool counts, const std::string& format) {
  const char type = format.empty() ? '\0' : format.back();
  const bool as_integer = is_one_of(type, "dbBoxX") || (counts && !is_one_of(type, "eEfFgGaA"));
  if (format.empty() && !counts) return plain_number(value);
  const auto pattern = "{:" + format + "}";
  if (as_integer) return fmt::format(fmt::runtime(pattern), static_cast<int64_t>(std::llround(value)));
  return fmt::format(fmt::runtime(pattern), value);
}

}  // namespace

CheckpointName::CheckpointName(std::string_view pattern, bool insert_names) {
  Part part;
  for (size_t at = 0; at < pattern.size();) {
    const auto open = pattern.find_first_of("{}", at);
    part.text += pattern.substr(at, open == pattern.npos ? pattern.npos : open - at);
    if (open == pattern.npos) break;
    const auto close = pattern.find('}', open);
    LEVIN_CHECK(pattern[open] == '{' && close != pattern.npos, "[ModelCheckpoint] filename \"", pattern,
                "\" has a brace without its partner; fields are written {epoch} or {val_loss:.3f}");
    const auto field = pattern.substr(open + 1, close - open - 1);
    const auto colon = field.find(':');
    part.field = field.substr(0, colon);
    if (colon != field.npos) part.format = field.substr(colon + 1);
    LEVIN_CHECK(!part.field.empty(), "[ModelCheckpoint] filename \"", pattern, "\" has a field without a name");
    if (insert_names) part.text += part.field + "=";
    try {
      format_number(0, part.field == "epoch" || part.field == "step", part.format);
    } catch (const fmt::format_error&) {
      detail::fail(detail::concat("[ModelCheckpoint] filename \"", pattern, "\": \"", part.format,
                                  "\" is not a format of a number; \"03d\" or \".5f\" would be"));
    }
    parts_.push_back(std::move(part));
    part = {};
    at = close + 1;
  }
  if (!part.text.empty()) parts_.push_back(std::move(part));
}

std::string CheckpointName::format(int64_t epoch, int64_t step, const MetricLookup& metric) const {
  std::string name;
  for (const auto& part : parts_) {
    name += part.text;
    if (part.field.empty()) continue;
    const auto value = metric(part.field);
    if (part.field == "epoch")
      name += format_number(value.value_or(static_cast<double>(epoch)), true, part.format);
    else if (part.field == "step")
      name += format_number(value.value_or(static_cast<double>(step)), true, part.format);
    else
      name += format_number(value.value_or(0), !value, part.format);
  }
  return name;
}

}  // namespace levin
