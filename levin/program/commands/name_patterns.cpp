#include "levin/program/commands/weight_flags.h"

#include <algorithm>
#include <charconv>
#include <span>

#include <fmt/format.h>
#include <fnmatch.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {

WeightFlags::WeightFlags(std::string_view command, const std::vector<std::string>& words,
                         std::vector<std::string> switches, std::vector<std::string> values,
                         const std::vector<std::string>& files)
    : command_(command) {
  const auto is_one_of = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--") || words[i] == "--") {
      LEVIN_CHECK(!words[i].starts_with("-") || words[i] == "--", "[", command_, "] flag \"", words[i],
                  "\" is not known (", command_, " --help)");
      if (words[i] != "--") files_.push_back(words[i]);
      continue;
    }
    const auto equals = words[i].find('=');
    const auto flag = words[i].substr(0, equals);
    if (is_one_of(switches, flag)) {
      LEVIN_CHECK(equals == std::string::npos, "[", command_, "] ", flag, " takes no value");
      given_[flag];
    } else if (is_one_of(values, flag)) {
      LEVIN_CHECK(equals != std::string::npos || i + 1 < words.size(), "[", command_, "] ", flag, " needs a value");
      given_[flag].push_back(equals == std::string::npos ? words[++i] : words[i].substr(equals + 1));
    } else {
      std::vector<std::string> known = switches;
      known.insert(known.end(), values.begin(), values.end());
      fail_unknown(command_, "flag", flag, known);
    }
  }
  LEVIN_CHECK(files_.size() == files.size(), "[", command_, "] ", files_.size(), " files were given; it takes ",
              join(files, " "), " (", command_, " --help)");
}

std::string WeightFlags::get(const std::string& flag, const std::string& otherwise) const {
  const auto found = given_.find(flag);
  return found == given_.end() || found->second.empty() ? otherwise : found->second.back();
}

std::string WeightFlags::get(const std::string& flag, const std::string& otherwise,
                             const std::vector<std::string>& known) const {
  const auto value = get(flag, otherwise);
  if (value != otherwise && std::find(known.begin(), known.end(), value) == known.end())
    fail_unknown(command_, flag, value, known);
  return value;
}

std::vector<std::string> WeightFlags::all(const std::string& flag) const {
  const auto found = given_.find(flag);
  return found == given_.end() ? std::vector<std::string>() : found->second;
}

uint64_t WeightFlags::bytes(const std::string& flag) const {
  const auto text = get(flag);
  if (!has(flag)) return 0;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::map<std::string, uint64_t> units{{"", 1},
                                              {"kB", 1000},
                                              {"MB", 1'000'000},
                                              {"GB", 1'000'000'000},
                                              {"KiB", uint64_t{1} << 10},
                                              {"MiB", uint64_t{1} << 20},
                                              {"GiB", uint64_t{1} << 30}};
  const auto unit = units.find(std::string(end, text.data() + text.size()));
  uint64_t result = 0;
  LEVIN_CHECK(error == std::errc() && unit != units.end() && number > 0 &&
                  !__builtin_mul_overflow(number, unit->second, &result),
              "[", command_, "] ", flag, " \"", text, "\" is not a number of bytes (5GB, 500MB, 2GiB)");
  return result;
}

bool wants_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const auto& word) { return word == "--help" || word == "-h"; });
}

bool passes(const std::string& name, const std::vector<std::string>& patterns) {
  bool any = false;
  bool chosen = false;
  for (const auto& pattern : patterns) {
    const bool excludes = pattern.starts_with('!');
    const bool matches = ::fnmatch(pattern.c_str() + (excludes ? 1 : 0), name.c_str(), 0) == 0;
    if (excludes && matches) return false;
    any = any || !excludes;
    chosen = chosen || (!excludes && matches);
  }
  return chosen || !any;
}

}  // namespace levin::cli
