#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "levin/core/error.h"

namespace levin::optim {

/// One number for all parameter groups, or one for each: `.max_lr = 0.1`, `.max_lr = {0.1, 0.01}`.
class PerGroup {
 public:
  PerGroup() = default;
  PerGroup(double value) : values_{value} {}
  PerGroup(std::initializer_list<double> values) : values_(values) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}

  bool empty() const { return values_.empty(); }
  /// As they were given.
  const std::vector<double>& values() const { return values_; }
  /// As many values as there are groups; an Error that names the option when the numbers do not fit.
  std::vector<double> resolve(const std::string& operation, const char* option, size_t groups) const {
    if (values_.size() == 1) return std::vector<double>(groups, values_[0]);
    LEVIN_CHECK(values_.size() == groups, "[", operation, "] ", option, " has ", values_.size(),
                " values, the optimizer has ", groups, " parameter groups; give one value, or one per group");
    return values_;
  }

 private:
  std::vector<double> values_;
};

}  // namespace levin::optim
