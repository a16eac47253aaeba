#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/config/fields.h"

namespace levin::cli {

/// The arguments and flags of a command, each described once: parsing, --help and shell completion come from here. A
/// flag is a config::Field; it is bound to a variable that must outlive the parsing.
class Flags {
 public:
  /// `command` ("levin pack") stands in front of errors and in the usage line, `summary` is the first line of --help.
  Flags(std::string command, std::string summary) : command_(std::move(command)), summary_(std::move(summary)) {}

  /// An argument without dashes, in the order of the calls. It must be given unless `is_optional`.
  template <class T>
  config::Field& argument(const char* name, T& value, std::string help, std::vector<std::string> words = {},
                          bool is_optional = false) {
    optional_arguments_ += is_optional;
    return arguments_.emplace_back(config::make_field(name, value, std::move(help), std::move(words)));
  }
  /// `--name VALUE` or `--name=VALUE`; of several the last one counts. For a bool `--name` is enough. `type` stands for
  /// the value in --help; `words` are the values that are allowed.
  template <class T>
  config::Field& flag(const char* name, T& value, std::string help, const char* type = nullptr,
                      std::vector<std::string> words = {}) {
    auto& field = flags_.emplace_back(config::make_field(name, value, std::move(help), std::move(words)));
    if (type) field.type = type;
    return field;
  }
  /// A flag that may be given several times.
  config::Field& repeated(const char* name, std::vector<std::string>& values, std::string help, const char* type);

  /// The last argument, of which there may be several.
  config::Field& repeated_argument(const char* name, std::vector<std::string>& values, std::string help);

  /// More lines at the end of --help.
  void set_epilog(std::string text) { epilog_ = std::move(text); }
  /// Flags end at the first word without dashes: it and all that follows go to `rest`.
  void set_rest(const char* usage, std::vector<std::string>& rest);
  /// A flag that is not given is read from the variable PREFIX_NAME, if that is set.
  void set_environment(std::string prefix) { environment_ = std::move(prefix); }

  /// Reads the words after the command. False when --help was given, which is then printed. An unknown flag, a bad
  /// value, a missing argument or one too many is an Error of one line.
  bool parse(const std::vector<std::string>& words) const;

  const std::string& command() const { return command_; }
  const std::vector<config::Field>& arguments() const { return arguments_; }
  const std::vector<config::Field>& flags() const { return flags_; }
  bool has_rest() const { return rest_ != nullptr; }
  /// "levin pack SRC DST [FLAGS]"
  std::string usage() const;
  std::string help() const;

 private:
  const config::Field* find(std::string_view name) const;
  void read(const config::Field& field, const std::string& shown, const std::string& value) const;
  void read_environment() const;
  void read_arguments(const std::vector<std::string>& given) const;
  [[noreturn]] void fail_unknown_flag(const std::string& word) const;

  std::string command_, summary_, epilog_, environment_, rest_usage_;
  std::vector<config::Field> arguments_, flags_;
  int optional_arguments_ = 0;
  std::vector<std::string>* rest_ = nullptr;
  bool repeats_last_ = false;
};

/// A number of bytes: 500000000, 500MB, 5GB, 7.3GB, 2GiB.
struct ByteCount {
  uint64_t bytes = 0;

  ByteCount() = default;
  explicit ByteCount(std::string_view text);
  std::string to_string() const { return bytes == 0 ? "" : std::to_string(bytes); }
};

/// "1 tensor", "2 tensors".
std::string counted(int64_t count, std::string_view one);

}  // namespace levin::cli
