#include "levin/report/views/flops.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "levin/core/error.h"
#include "levin/devices/product_operators.h"
#include "levin/report/json_text.h"
#include "levin/report/trace/element_types.h"

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

double flops_of(const ProductOperator& of, std::vector<Shape> shapes, const std::vector<std::string>& values) {
  ProductInputs inputs{.shapes = std::move(shapes)};
  const auto value = [&](size_t at) { return at < values.size() ? values[at] : std::string(); };
  const size_t first = first_number(of.kind);
  if (of.kind == ProductKind::kConvolution) {
    if (values.size() < first + 3) return 0;
    inputs.stride = numbers_of(values[first]);
    inputs.padding = numbers_of(values[first + 1]);
    inputs.dilation = numbers_of(values[first + 2]);
  }
  inputs.transposed = value(first + 3) == "True";  // of convolutions; others do not ask
  return product_flops(of, inputs);
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
  const auto* of = find_product_operator(name);
  if (of != nullptr && of->kind == ProductKind::kMatmul && shapes.size() > of->first + 1 &&
      shapes[of->first].size() >= 2 && shapes[of->first + 1].size() >= 2) {
    const auto &a = shapes[of->first], &b = shapes[of->first + 1];
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

bool FlopCounter::is_counted(const HostSpan& span) {
  if (counted_.size() < trace_.names.size()) counted_.resize(trace_.names.size(), -1);
  auto& is = counted_[span.name];
  const std::string_view name = trace_.name(span.name);
  if (is < 0) is = find_product_operator(name) != nullptr;
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
    known.flops = flops_of(*find_product_operator(trace_.name(span.name)), shapes_of(trace_.name(span.shapes)),
                           texts_of(trace_.name(span.values)));
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
