#include "levin/report/trace/element_types.h"

#include <array>

namespace levin::report {
namespace {

struct TypeBytes {
  std::string_view name;
  int bytes;
};
constexpr std::array kTypeBytes{
    TypeBytes{"float", 4}, TypeBytes{"c10::BFloat16", 2}, TypeBytes{"c10::Half", 2}, TypeBytes{"double", 8},
    TypeBytes{"long int", 8}, TypeBytes{"long", 8}, TypeBytes{"int", 4}, TypeBytes{"short int", 2},
    TypeBytes{"unsigned char", 1}, TypeBytes{"signed char", 1}, TypeBytes{"char", 1}, TypeBytes{"bool", 1},
    TypeBytes{"c10::Float8_e4m3fn", 1}, TypeBytes{"c10::Float8_e5m2", 1}, TypeBytes{"c10::Float8_e4m3fnuz", 1},
    TypeBytes{"c10::Float8_e5m2fnuz", 1}, TypeBytes{"c10::complex<float>", 8}, TypeBytes{"c10::complex<double>", 16},
    // c10::toString(ScalarType).
    TypeBytes{"Float", 4}, TypeBytes{"BFloat16", 2}, TypeBytes{"Half", 2}, TypeBytes{"Double", 8}, TypeBytes{"Long", 8},
    TypeBytes{"Int", 4}, TypeBytes{"Short", 2}, TypeBytes{"Byte", 1}, TypeBytes{"Char", 1}, TypeBytes{"Bool", 1},
    TypeBytes{"Float8_e4m3fn", 1}, TypeBytes{"Float8_e5m2", 1}, TypeBytes{"Float8_e4m3fnuz", 1},
    TypeBytes{"Float8_e5m2fnuz", 1}, TypeBytes{"ComplexFloat", 8}, TypeBytes{"ComplexDouble", 16}};

}  // namespace

int bytes_of_type(std::string_view type) {
  for (const auto& row : kTypeBytes) {
    if (row.name == type) return row.bytes;
  }
  return 0;
}

}  // namespace levin::report
