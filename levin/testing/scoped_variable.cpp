#include "levin/testing/scoped_variable.h"

#include <utility>

#include <stdlib.h>

namespace levin::testing {
namespace {

void assign(const std::string& name, const std::optional<std::string>& value) {
  if (value)
    ::setenv(name.c_str(), value->c_str(), 1);
  else
    ::unsetenv(name.c_str());
}

}  // namespace

ScopedVariable::ScopedVariable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
  if (const char* before = ::getenv(name_.c_str())) before_ = before;
  assign(name_, value);
}

ScopedVariable::~ScopedVariable() {
  assign(name_, before_);
}

}  // namespace levin::testing
