#pragma once

#include <functional>
#include <string>
#include <vector>

namespace levin {

/// The command line of a program: what `Fabric::launch` needs to start the other ranks, and simple flags for examples.
class Args {
 public:
  Args(int argc, char** argv) : values_(argv, argv + argc) {}

  /// Everything, the program's name first.
  const std::vector<std::string>& values() const { return values_; }

  /// The value of `--name VALUE` or `--name=VALUE`, else the default. Numbers are checked: an Error names the flag.
  std::string get(std::string_view name, std::string_view otherwise) const;
  std::string get(std::string_view name, const char* otherwise) const { return get(name, std::string_view(otherwise)); }
  int64_t get(std::string_view name, int64_t otherwise) const;
  int64_t get(std::string_view name, int otherwise) const { return get(name, static_cast<int64_t>(otherwise)); }
  double get(std::string_view name, double otherwise) const;
  /// `--name` alone is true; so are the values true, yes, on and 1. False are false, no, off and 0.
  bool get(std::string_view name, bool otherwise) const;
  /// Whether the flag `--name` was given.
  bool has(std::string_view name) const;
  /// Throws when a flag was given that nobody asked for with get() or has(): names it and the nearest known one.
  void check_all_used() const;

 private:
  const std::string* find(std::string_view name) const;

  std::vector<std::string> values_;
  mutable std::vector<std::string> asked_;
};

/// Runs a program's body; any exception becomes one line on stderr and exit status 1.
///
///     int main(int argc, char** argv) {
///       return levin::run_main(argc, argv, [](levin::Args& args) { ... });
///     }
int run_main(int argc, char** argv, const std::function<void(Args&)>& body) noexcept;

/// A clause that explains torch's errors about shapes while it is there: it follows them where run_main prints one that
/// names no module. A note that goes because of an exception is still read.
class ShapeErrorNote {
 public:
  explicit ShapeErrorNote(std::string clause);
  ~ShapeErrorNote();
  ShapeErrorNote(const ShapeErrorNote&) = delete;
  ShapeErrorNote& operator=(const ShapeErrorNote&) = delete;

 private:
  const std::string clause_;
};

/// The first line of an exception's message, without the C++ stack that LibTorch appends.
std::string one_line(const std::exception& error);

}  // namespace levin
