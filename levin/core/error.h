#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace levin {

/// The one exception type of Levin. `what()` is a single line: the operation in brackets, what was asked, what is
/// allowed.
///
///     [fabric.setup] precision "fp16" is not known; did you mean "16-true"? (known: 16-true, 16-mixed, ...)
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& line) : std::runtime_error(line) {}
};

/// A signal ended the work, in order. run_main turns it into the exit status 128 + signal.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& line, int signal) : Error(line), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

namespace detail {
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}
[[noreturn]] void fail(const std::string& line);
}  // namespace detail

}  // namespace levin

/// Throws levin::Error made of the arguments, concatenated, when the condition does not hold.
#define LEVIN_CHECK(condition, ...)                                \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::levin::detail::fail(::levin::detail::concat(__VA_ARGS__)); \
  } while (false)
