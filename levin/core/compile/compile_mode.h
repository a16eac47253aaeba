#pragma once

#include <string>
#include <string_view>

namespace levin {

/// How steps are compiled: `true` or "graph" captures them as they are (the bits of eager steps), "fuse" fuses their
/// operators and captures them, `false` calls them.
class CompileMode {
 public:
  CompileMode(bool on = false) : kind_(on ? Kind::kGraph : Kind::kOff) {}
  CompileMode(std::string_view word);
  CompileMode(const char* word) : CompileMode(std::string_view(word)) {}
  CompileMode(const std::string& word) : CompileMode(std::string_view(word)) {}

  explicit operator bool() const { return kind_ != Kind::kOff; }
  bool fuses() const { return kind_ == Kind::kFuse; }
  /// "fuse", "graph" or "false".
  std::string to_string() const;
  bool operator==(const CompileMode&) const = default;

 private:
  enum class Kind { kOff, kGraph, kFuse };
  Kind kind_;
};

}  // namespace levin
