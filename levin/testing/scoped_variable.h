#pragma once

#include <optional>
#include <string>

namespace levin::testing {

/// Sets an environment variable, or removes it (std::nullopt), and restores it in the destructor.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::optional<std::string>& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace levin::testing
