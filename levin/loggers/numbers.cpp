#include "levin/loggers/numbers.h"

#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace levin::detail {

Number number_of(const at::Tensor& scalar) {
  if (scalar.scalar_type() == at::kBool) return scalar.item<bool>();
  if (at::isIntegralType(scalar.scalar_type(), false)) return scalar.item<int64_t>();
  return scalar.to(at::kDouble).item<double>();
}

double to_double(const Number& number) {
  return std::visit([](auto value) { return static_cast<double>(value); }, number);
}

void append_python_float(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "nan";  // whatever its sign
    return;
  }
  const auto start = out.size();
  fmt::format_to(std::back_inserter(out), "{}", value);
  if (out.find_first_of(".ei", start) == std::string::npos) out += ".0";
}

std::string python_float(double value) {
  std::string text;
  append_python_float(text, value);
  return text;
}

void append_python_number(std::string& out, const Number& number) {
  if (const auto* real = std::get_if<double>(&number))
    append_python_float(out, *real);
  else if (const auto* integer = std::get_if<int64_t>(&number))
    fmt::format_to(std::back_inserter(out), "{}", *integer);
  else
    out += std::get<bool>(number) ? "True" : "False";
}

}  // namespace levin::detail
