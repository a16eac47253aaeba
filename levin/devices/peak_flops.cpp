#include "levin/devices/peak_flops.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace levin {
namespace {

// Dense figures from the makers' data sheets, in TFLOP/s; 0: the device cannot, or nothing is said. More special names
// stand before the general ones they contain.
struct Row {
  std::string_view name;
  double fp64, fp32, tf32, half;
};
constexpr std::array kRows{
    Row{"b200", 37, 75, 1100, 2250},
    Row{"gh200", 67, 67, 494.7, 989.4},
    Row{"h200 nvl", 60, 60, 417.5, 835.5},
    Row{"h200", 67, 67, 494.7, 989.4},
    Row{"h100 pcie", 51, 51, 378, 756},
    Row{"h100 nvl", 60, 60, 417.5, 835.5},
    Row{"h100", 67, 67, 494.7, 989.4},
    Row{"h20", 1, 44, 74, 148},
    Row{"h800", 1, 67, 494.7, 989.4},
    Row{"a100", 19.5, 19.5, 156, 312},
    Row{"a800", 9.7, 19.5, 156, 312},
    Row{"a6000", 0.6, 38.7, 77.4, 154.8},
    Row{"a5000", 0.4, 27.8, 55.6, 111.1},
    Row{"a40", 0.6, 37.4, 74.8, 149.7},
    Row{"a30", 10.3, 10.3, 82, 165},
    Row{"a10g", 0, 31.2, 35, 70},
    Row{"a10", 0, 31.2, 62.5, 125},
    Row{"l40s", 1.4, 91.6, 183, 362},
    Row{"l40", 1.4, 90.5, 90.5, 181},
    Row{"l4", 0.5, 30.3, 60, 121},
    Row{"rtx 5090", 1.6, 104.8, 104.8, 209.5},
    Row{"rtx 4090", 1.3, 82.6, 82.6, 165.2},
    Row{"rtx 4080", 0.8, 48.7, 48.7, 97.5},
    Row{"rtx 4070", 0.5, 29.1, 29.1, 58.3},
    Row{"rtx 3090", 0.6, 35.6, 35.6, 71.2},
    Row{"rtx 3080", 0.5, 29.8, 29.8, 59.5},
    Row{"v100-pcie", 7, 14, 0, 112},
    Row{"v100", 7.8, 15.7, 0, 125},
    Row{"titan rtx", 0.5, 16.3, 0, 130.5},
    Row{"rtx 2080 ti", 0.4, 13.4, 0, 107.6},
    Row{"t4", 0.25, 8.1, 0, 65},
    Row{"p100", 4.7, 9.3, 0, 18.7},
};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Whole words only, so that "L4" is not found in "L40S", nor "A10" in "A100".
bool contains_words(std::string_view text, std::string_view words) {
  for (size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) {
    const size_t end = at + words.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::optional<double> peak_flops(std::string_view device_name, c10::ScalarType dtype, bool tf32) {
  std::string name(device_name);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto row = std::ranges::find_if(kRows, [&](const Row& r) { return contains_words(name, r.name); });
  if (row == kRows.end()) return {};
  double peak = 0;
  if (dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16) peak = row->half;
  if (dtype == c10::ScalarType::Float) peak = tf32 && row->tf32 > 0 ? row->tf32 : row->fp32;
  if (dtype == c10::ScalarType::Double) peak = row->fp64;
  return peak > 0 ? std::optional(peak * 1e12) : std::nullopt;
}

}  // namespace levin
