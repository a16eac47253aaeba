#include "levin/report/views/flops.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "levin/core/error.h"
#include "levin/report/json_text.h"

namespace levin::report {
namespace {

double count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0,
                         [](double a, int64_t b) { return a * static_cast<double>(b); });
}

std::vector<std::string> texts_of(std::string_view text) {
  std::vector<std::string> out;
  if (!text.starts_with('[')) return out;
  try {
    for (JsonMembers items(text); items.next();) out.push_back(text_of(items.value()));
  } catch (const Error&) {
    out.clear();
  }
  return out;
}

Shape numbers_of(const std::string& text) {
  const auto shapes = shapes_of("[" + text + "]");
  return shapes.empty() ? Shape() : shapes[0];
}

double at(const Shape& shape, size_t i) {
  return static_cast<double>(shape[i]);
}

// [.., m, k] x [.., k, n]
double product(const Shape& a, const Shape& b) {
  if (a.size() < 2 || b.size() < 2) return 0;
  return 2 * count(a) * at(b, b.size() - 1);
}

// Input [N, C, ...], weight [O, C / groups, k...], stride, padding and dilation in the values.
double convolution(const std::vector<Shape>& shapes, const std::vector<std::string>& values, size_t first_value) {
  if (shapes.size() < 2 || shapes[0].size() < 3 || shapes[1].size() != shapes[0].size()) return 0;
  const auto &input = shapes[0], &weight = shapes[1];
  if (values.size() < first_value + 3) return 0;
  const auto stride = numbers_of(values[first_value]), padding = numbers_of(values[first_value + 1]),
             dilation = numbers_of(values[first_value + 2]);
  const auto of = [](const Shape& list, size_t i, int64_t otherwise) {
    return list.empty() ? otherwise : list[std::min(i, list.size() - 1)];
  };
  double outputs = at(input, 0) * at(weight, 0);
  for (size_t i = 2; i < input.size(); ++i) {
    const auto step = std::max<int64_t>(of(stride, i - 2, 1), 1);
    const auto reach = of(dilation, i - 2, 1) * (weight[i] - 1) + 1;
    outputs *= static_cast<double>((input[i] + 2 * of(padding, i - 2, 0) - reach) / step + 1);
  }
  return 2 * outputs * count(weight) / std::max(at(weight, 0), 1.0);
}

// Query and key [.., L, D] and [.., S, D]: two products.
double attention(const std::vector<Shape>& shapes) {
  if (shapes.size() < 3 || shapes[0].size() < 3 || shapes[1].size() != shapes[0].size()) return 0;
  return 4 * count(shapes[0]) * at(shapes[1], shapes[1].size() - 2);
}

// qkv [B, T, 3, H, D], packed.
double packed_attention(const Shape& qkv) {
  return qkv.size() == 5 ? 4 * at(qkv, 0) * at(qkv, 3) * at(qkv, 1) * at(qkv, 1) * at(qkv, 4) : 0;
}

constexpr std::array<std::string_view, 21> kCounted{"levin::matmul",
                                                    "levin::matmul_and_sums",
                                                    "levin::matmul_into",
                                                    "levin::fp8_mm",
                                                    "levin::linear_cross_entropy_step",
                                                    "levin::short_attention",
                                                    "levin::short_attention_backward",
                                                    "levin::causal_attention_backward",
                                                    "aten::mm",
                                                    "aten::addmm",
                                                    "aten::_addmm_activation",
                                                    "aten::bmm",
                                                    "aten::baddbmm",
                                                    "aten::convolution",
                                                    "aten::convolution_backward",
                                                    "aten::_scaled_dot_product_flash_attention",
                                                    "aten::_scaled_dot_product_efficient_attention",
                                                    "aten::_scaled_dot_product_cudnn_attention",
                                                    "aten::_scaled_dot_product_flash_attention_for_cpu",
                                                    "aten::_scaled_dot_product_flash_attention_backward",
                                                    "aten::_scaled_dot_product_cudnn_attention_backward"};

/// Which input of a product of two matrices is the first of them.
std::optional<size_t> first_factor(std::string_view name) {
  for (const std::string_view product : {"aten::mm", "aten::bmm", "levin::matmul", "levin::matmul_and_sums"})
    if (name == product) return 0;
  for (const std::string_view product :
       {"aten::addmm", "aten::baddbmm", "aten::_addmm_activation", "levin::matmul_into"})
    if (name == product) return 1;
  return std::nullopt;
}

double flops_of(std::string_view name, const std::vector<Shape>& shapes, const std::vector<std::string>& values) {
  if (const auto first = first_factor(name))
    return shapes.size() > *first + 1 ? product(shapes[*first], shapes[*first + 1]) : 0;
  if (name == "levin::fp8_mm" || name == "levin::linear_cross_entropy_step")
    return shapes.size() >= 2 ? 2 * count(shapes[0]) * at(shapes[1], 0) : 0;
  if (name == "levin::short_attention" && !shapes.empty()) return packed_attention(shapes[0]);
  for (const std::string_view backward : {"levin::short_attention_backward", "levin::causal_attention_backward"})
    if (name == backward) return shapes.size() >= 2 ? 2.5 * packed_attention(shapes[1]) : 0;
  if (name == "aten::convolution") return convolution(shapes, values, 3);
  if (name == "aten::convolution_backward" && shapes.size() >= 3) {
    // The gradients of input and weight; the first input is the gradient of the output.
    const auto forward = convolution({shapes[1], shapes[2]}, values, 4);
    return 2 * forward;
  }
  if (name.find("_attention_backward") != std::string_view::npos && shapes.size() >= 4)
    return 2.5 * attention({shapes[1], shapes[2], shapes[3]});
  if (name.find("_attention") != std::string_view::npos) return attention(shapes);
  return 0;
}

// Inputs are read once. The output has the size of the product, or of the largest input.
OperatorCost cost_of(std::string_view name, const std::vector<Shape>& shapes, const std::vector<std::string>& types) {
  OperatorCost cost;
  double largest = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int bytes = i < types.size() ? bytes_of_type(types[i]) : 0;
    if (bytes == 0 || shapes[i].empty()) continue;
    if (cost.element_bytes == 0) cost.element_bytes = bytes;
    const double size = count(shapes[i]) * bytes;
    cost.bytes += size;
    largest = std::max(largest, size);
  }
  double output = largest;
  const auto first = first_factor(name);
  if (first && shapes.size() > *first + 1 && shapes[*first].size() >= 2 && shapes[*first + 1].size() >= 2) {
    const auto &a = shapes[*first], &b = shapes[*first + 1];
    output = count(a) / std::max(at(a, a.size() - 1), 1.0) * at(b, b.size() - 1) * cost.element_bytes;
  }
  cost.bytes += output;
  return cost;
}

}  // namespace

std::vector<Shape> shapes_of(std::string_view text) {
  std::vector<Shape> shapes;
  if (!text.starts_with('[') || !text.ends_with(']')) return shapes;
  try {
    for (JsonMembers items(text); items.next();) {
      auto& shape = shapes.emplace_back();
      if (!items.value().starts_with('[')) continue;
      for (JsonMembers sizes(items.value()); sizes.next();) {
        const auto size = integer_of(sizes.value());
        if (!size || *size < 0) {
          shape.clear();
          break;
        }
        shape.push_back(*size);
      }
    }
  } catch (const Error&) {
    shapes.clear();
  }
  return shapes;
}

int bytes_of_type(std::string_view type) {
  struct Row {
    std::string_view name;
    int bytes;
  };
  constexpr std::array kRows{Row{"float", 4},
                             Row{"c10::BFloat16", 2},
                             Row{"c10::Half", 2},
                             Row{"double", 8},
                             Row{"long int", 8},
                             Row{"long", 8},
                             Row{"int", 4},
                             Row{"short int", 2},
                             Row{"unsigned char", 1},
                             Row{"signed char", 1},
                             Row{"char", 1},
                             Row{"bool", 1},
                             Row{"c10::Float8_e4m3fn", 1},
                             Row{"c10::Float8_e5m2", 1},
                             Row{"c10::complex<float>", 8}};
  for (const auto& row : kRows) {
    if (row.name == type) return row.bytes;
  }
  return 0;
}

bool FlopCounter::is_counted(const HostSpan& span) {
  if (counted_.size() < trace_.names.size()) counted_.resize(trace_.names.size(), -1);
  auto& is = counted_[span.name];
  const std::string_view name = trace_.name(span.name);
  if (is < 0) is = std::find(kCounted.begin(), kCounted.end(), name) != kCounted.end();
  return is != 0;
}

FlopCounter::Entry& FlopCounter::entry(const HostSpan& span) {
  auto& rows = entries_[(uint64_t{span.name} << 32) | span.shapes];
  // Values matter to FLOPs alone; those of other operators may differ in every call.
  const std::pair key{span.types, is_counted(span) ? span.values : 0};
  for (auto& [known, entry] : rows) {
    if (known == key) return entry;
  }
  return rows.emplace_back(key, Entry{}).second;
}

std::optional<double> FlopCounter::of(const HostSpan& span) {
  if (span.shapes == 0 || !is_counted(span)) return std::nullopt;
  auto& known = entry(span);
  if (!known.flops)
    known.flops =
        flops_of(trace_.name(span.name), shapes_of(trace_.name(span.shapes)), texts_of(trace_.name(span.values)));
  return *known.flops > 0 ? known.flops : std::nullopt;
}

std::optional<OperatorCost> FlopCounter::cost(const HostSpan& span) {
  if (span.shapes == 0) return std::nullopt;
  auto& known = entry(span);
  if (!known.has_cost) {
    known.has_cost = true;
    known.cost =
        cost_of(trace_.name(span.name), shapes_of(trace_.name(span.shapes)), texts_of(trace_.name(span.types)));
    if (known.cost->bytes <= 0) known.cost.reset();
  }
  auto cost = known.cost;
  if (cost) cost->flops = of(span).value_or(0);
  return cost;
}

}  // namespace levin::report
