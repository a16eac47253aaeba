#include "levin/program/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "levin/config/config.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// "--tee", "-t"
std::string shown_name(const std::string& name) {
  return (name.size() == 1 ? "-" : "--") + name;
}

std::string flag_help(const config::Field& field) {
  auto left = shown_name(field.name);
  for (const auto& alias : field.aliases) left += ", " + shown_name(alias);
  if (!field.is_bool) left += " " + field.type;
  auto text = field.help;
  if (!field.words.empty() && !field.words_are_hints) text += fmt::format(" ({})", join(field.words));
  const auto value = field.write ? field.write() : config::Node();
  if (!field.is_bool && value.is_text() && !value.text.empty()) text += fmt::format(" [{}]", value.text);
  return config::detail::help_line(left, text);
}

}  // namespace

config::Field& Flags::repeated(const char* name, std::vector<std::string>& values, std::string help, const char* type) {
  config::Field field{.name = name, .help = std::move(help), .type = type};
  field.read = [at = &values](const config::Node& node) { at->push_back(node.text); };
  field.write = [at = &values] { return config::Node::of_text(join(*at)); };
  return flags_.emplace_back(std::move(field));
}

config::Field& Flags::repeated_argument(const char* name, std::vector<std::string>& values, std::string help) {
  config::Field field{.name = name, .help = std::move(help), .type = "PATH"};
  field.read = [at = &values](const config::Node& node) { at->push_back(node.text); };
  repeats_last_ = true;
  return arguments_.emplace_back(std::move(field));
}

void Flags::set_rest(const char* usage, std::vector<std::string>& rest) {
  rest_usage_ = usage;
  rest_ = &rest;
}

std::string Flags::usage() const {
  auto text = command_;
  const auto needed = arguments_.size() - static_cast<size_t>(optional_arguments_);
  for (size_t i = 0; i < arguments_.size(); ++i)
    text += i < needed ? " " + arguments_[i].name : " [" + arguments_[i].name + "]";
  if (repeats_last_) text += "...";
  if (!flags_.empty()) text += " [FLAGS]";
  return text + (rest_ ? " " + rest_usage_ : "");
}

std::string Flags::help() const {
  auto text = fmt::format("{}: {}\n\nUsage: {}\n\n", command_, summary_, usage());
  for (const auto& argument : arguments_)
    text += config::detail::help_line(
        argument.name, argument.help + (argument.words.empty() ? "" : fmt::format(" ({})", join(argument.words))));
  for (const auto& field : flags_)
    if (!field.is_hidden) text += flag_help(field);
  text += config::detail::help_line("--help, -h", "print this help");
  return epilog_.empty() ? text : text + "\n" + epilog_;
}

const config::Field* Flags::find(std::string_view name) const {
  for (const auto& field : flags_) {
    if (field.name == name) return &field;
    if (std::find(field.aliases.begin(), field.aliases.end(), name) != field.aliases.end()) return &field;
  }
  return nullptr;
}

void Flags::fail_unknown_flag(const std::string& word) const {
  std::vector<std::string> known;
  for (const auto& field : flags_) {
    known.push_back(shown_name(field.name));
    for (const auto& alias : field.aliases)
      if (alias.size() > 1) known.push_back(shown_name(alias));
  }
  fail_unknown(command_, "flag", word, known);
}

void Flags::read(const config::Field& field, const std::string& shown, const std::string& value) const {
  const bool is_known = std::find(field.words.begin(), field.words.end(), value) != field.words.end();
  if (!field.words.empty() && !field.words_are_hints && !is_known) fail_unknown(command_, shown, value, field.words);
  try {
    field.read(config::Node::of_text(value));
  } catch (const config::BadValue& error) {
    throw Error(fmt::format("[{}] {} \"{}\" {}", command_, shown, value, error.what()));
  }
}

void Flags::read_environment() const {
  if (environment_.empty()) return;
  for (const auto& field : flags_) {
    auto name = environment_ + "_" + field.name;
    for (auto& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (const char* value = std::getenv(name.c_str()); value && *value) read(field, name, value);
  }
}

void Flags::read_arguments(const std::vector<std::string>& given) const {
  LEVIN_CHECK(given.size() <= arguments_.size() || repeats_last_, "[", command_, "] \"", given[arguments_.size()],
              "\" is one word too many (", usage(), ")");
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& argument = arguments_[std::min(i, arguments_.size() - 1)];
    // A word that must stand there, as "bench" in `levin data bench`.
    const bool is_keyword = argument.words == std::vector<std::string>{argument.name};
    LEVIN_CHECK(!is_keyword || given[i] == argument.name, "[", command_, "] \"", given[i], "\" stands where \"",
                argument.name, "\" must (", usage(), ")");
    read(argument, argument.name, given[i]);
  }
  const auto needed = arguments_.size() - static_cast<size_t>(optional_arguments_);
  if (given.size() >= needed) return;
  const auto& missing = arguments_[given.size()];
  const auto known = missing.words.empty() ? std::string() : "; known: " + join(missing.words);
  throw Error(fmt::format("[{}] {} is missing{} ({})", command_, missing.name, known, usage()));
}

bool Flags::parse(const std::vector<std::string>& words) const {
  // What --help prints as defaults are those of the program, whatever else is given.
  for (const auto& word : words) {
    if (word == "--" || (rest_ && !word.starts_with('-'))) break;
    if (word != "--help" && word != "-h") continue;
    std::fputs(help().c_str(), stdout);
    return false;
  }
  read_environment();
  std::vector<std::string> given;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto& word = words[i];
    // A negative number is an argument, so that its command can say what is wrong with it.
    const bool is_number = word.size() > 1 && (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
    const bool is_flag = word.size() > 1 && word.starts_with('-') && word != "--" && !is_number;
    if (rest_ && !is_flag) {
      rest_->assign(words.begin() + static_cast<std::ptrdiff_t>(word == "--" ? i + 1 : i), words.end());
      break;
    }
    if (word == "--") {
      given.insert(given.end(), words.begin() + static_cast<std::ptrdiff_t>(i + 1), words.end());
      break;
    }
    if (!is_flag) {
      given.push_back(word);
      continue;
    }
    const bool is_short = !word.starts_with("--");
    const auto equals = std::min(word.find('='), word.size());
    const auto shown = is_short ? word.substr(0, 2) : word.substr(0, equals);
    const auto* field = find(is_short ? shown.substr(1) : dashed(shown.substr(2)));
    if (!field) fail_unknown_flag(word.substr(0, equals));
    std::optional<std::string> value;
    if (is_short && word.size() > 2)
      value = word.substr(word[2] == '=' ? 3 : 2);
    else if (!is_short && equals < word.size())
      value = word.substr(equals + 1);
    else if (field->is_bool)
      value = "true";
    else if (i + 1 < words.size() && !words[i + 1].starts_with("--"))
      value = words[++i];
    LEVIN_CHECK(value, "[", command_, "] ", shown, " needs a value (", shown, " ", field->type, ")");
    read(*field, shown_name(field->name), *value);
  }
  read_arguments(given);
  return true;
}

ByteCount::ByteCount(std::string_view text) {
  static const std::map<std::string_view, uint64_t> units{{"", 1},
                                                          {"kB", 1000},
                                                          {"MB", 1'000'000},
                                                          {"GB", 1'000'000'000},
                                                          {"KiB", uint64_t{1} << 10},
                                                          {"MiB", uint64_t{1} << 20},
                                                          {"GiB", uint64_t{1} << 30}};
  const auto digits = text.substr(0, text.find_first_not_of("0123456789."));
  const auto unit = units.find(text.substr(digits.size()));
  const auto read = [&](auto& number) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  uint64_t whole = 0;
  double decimal = 0;
  bool is_count = false;
  if (unit != units.end() && read(whole)) {
    is_count = !__builtin_mul_overflow(whole, unit->second, &bytes);
  } else if (unit != units.end() && unit->second > 1 && read(decimal)) {
    decimal *= static_cast<double>(unit->second);
    is_count = decimal < 0x1p63;
    if (is_count) bytes = static_cast<uint64_t>(std::llround(decimal));
  }
  if (!is_count || bytes == 0) throw config::BadValue("is not a number of bytes (5GB, 7.3GB, 500MB, 2GiB)");
}

std::string counted(int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace levin::cli
