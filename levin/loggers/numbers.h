#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// What a metric is once it has been read.
using Number = std::variant<double, int64_t, bool>;

/// The one element of a tensor on the CPU, as Python's `item()` gives it: a float, an integer or a boolean.
Number number_of(const at::Tensor& scalar);
double to_double(const Number& number);

/// The shortest text that reads back as this number, as Python's `repr` writes it: 1.0, 1e-05, 0.1, nan, -inf.
void append_python_float(std::string& out, double value);
std::string python_float(double value);
/// As `str()`: 3, 0.5, True.
void append_python_number(std::string& out, const Number& number);

}  // namespace levin::detail
