#include "levin/devices/devices.h"

#include <algorithm>
#include <charconv>

#include "levin/core/error.h"

namespace levin {
namespace {

int parse_id(std::string_view text, const std::string& whole) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LEVIN_CHECK(error == std::errc() && end == text.data() + text.size() && !text.empty(), "[fabric] devices \"", whole,
              "\" is not understood (allowed: \"auto\", a count such as 2, -1 for all, a list such as \"0,2\")");
  return value;
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> ids;
  for (size_t begin = 0; begin < text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    const auto part = std::string_view(text).substr(begin, comma - begin);
    begin = comma + 1;
    if (begin >= text.size() && part.find_first_not_of(' ') == std::string_view::npos) break;  // "0," is a list of one
    ids.push_back(parse_id(part, text));
  }
  return ids;
}

}  // namespace

Devices::Devices(const std::vector<int>& ids) : is_list_(true) {
  for (const int id : ids) text_ += (text_.empty() ? "" : ",") + std::to_string(id);
}

std::vector<c10::Device> resolve_devices(const Devices& asked, c10::DeviceType type, int available) {
  const auto& text = asked.text();
  const bool cpu = type == c10::DeviceType::CPU;
  const bool list = asked.is_list() || text.find(',') != std::string::npos;
  std::vector<int> ids;
  if (list) {
    ids = parse_list(text);
    LEVIN_CHECK(!ids.empty(), "[fabric] devices is an empty list; ask for at least one");
  } else {
    int count = text == "auto" ? (cpu ? 1 : available) : parse_id(text, text);
    LEVIN_CHECK(count != 0, "[fabric] devices ", text, " leaves nothing to run on; ask for at least 1");
    LEVIN_CHECK(count >= -1, "[fabric] devices ", text, " is not allowed (a count of 1 or more, or -1 for all)");
    if (count == -1) count = cpu ? 1 : available;
    LEVIN_CHECK(cpu || count <= available, "[fabric] devices ", text, " asks for more than the ", available, " there ",
                available == 1 ? "is" : "are");
    for (int i = 0; i < count; ++i) ids.push_back(i);
  }
  std::vector<c10::Device> devices;
  for (size_t i = 0; i < ids.size(); ++i) {
    LEVIN_CHECK(std::find(ids.begin(), ids.begin() + i, ids[i]) == ids.begin() + i, "[fabric] devices \"", text,
                "\" names device ", ids[i], " twice");
    if (cpu) {
      devices.emplace_back(type);
      continue;
    }
    LEVIN_CHECK(ids[i] >= 0 && ids[i] < available, "[fabric] devices \"", text, "\" names device ", ids[i],
                ", but there ",
                available == 1 ? "is only device 0" : "are only devices 0 to " + std::to_string(available - 1));
    devices.emplace_back(type, static_cast<c10::DeviceIndex>(ids[i]));
  }
  return devices;
}

}  // namespace levin
