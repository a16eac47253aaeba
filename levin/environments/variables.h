#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "levin/environments/environment.h"

namespace levin::detail {

/// Reads variables for one kind of environment, whose name stands in every error. An empty variable counts as not set.
class Variables {
 public:
  Variables(ReadVariable read, std::string environment)
      : read_(std::move(read)), environment_(std::move(environment)) {}

  bool has(const char* name) const { return text(name).has_value(); }
  std::optional<std::string> text(const char* name) const;
  std::string required_text(const char* name) const;

  /// A whole number of at least 0; anything else is an Error with the variable and its value.
  std::optional<int> number(const char* name) const;
  int required_number(const char* name) const;
  /// The first of several names for one thing that is set. Two that are set and differ are an Error.
  std::optional<int> number(std::initializer_list<const char*> names) const;
  /// 1 to 65535.
  std::optional<int> port(const char* name) const;

  /// Throws unless 0 <= rank < size.
  void check_rank(const char* rank_name, int rank, const char* size_name, int size) const;
  /// Throws when the world that was started is not the one asked for.
  void check_world(const char* name, int world_size, const WorldAsked& asked) const;

  [[noreturn]] void fail(const std::string& line) const;

 private:
  ReadVariable read_;
  std::string environment_;
};

}  // namespace levin::detail
