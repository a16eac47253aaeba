#include "levin/strategies/pipeline/shapes.h"

#include <limits>
#include <sstream>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

void write(std::ostream& out, const TensorSpec& spec) {
  if (!spec.defined) {
    out << "-\n";
    return;
  }
  out << static_cast<int>(spec.dtype) << ' ' << spec.sizes.size();
  for (const auto size : spec.sizes) out << ' ' << size;
  out << '\n';
}

TensorSpec read_spec(std::istream& in) {
  std::string first;
  in >> first;
  TensorSpec spec;
  if (first == "-") return spec;
  spec.defined = true;
  spec.dtype = static_cast<c10::ScalarType>(std::stoi(first));
  size_t dims = 0;
  in >> dims;
  spec.sizes.resize(dims);
  for (auto& size : spec.sizes) in >> size;
  return spec;
}

}  // namespace

TensorSpec TensorSpec::of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {true, tensor.scalar_type(), tensor.sizes().vec()};
}

int64_t TensorSpec::bytes() const {
  if (!defined) return 0;
  auto count = static_cast<int64_t>(c10::elementSize(dtype));
  for (const auto size : sizes) count *= size;
  return count;
}

std::string TensorSpec::text() const {
  return defined ? fmt::format("{} [{}]", c10::toString(dtype), fmt::join(sizes, ", ")) : "nothing";
}

std::vector<TensorSpec> StageShapes::carried_specs() const {
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (carried[i]) specs.push_back(inputs[i]);
  return specs;
}

std::string StageShapes::to_text() const {
  std::ostringstream out;
  out << before.size() << '\n';
  for (const auto& result : before) {
    out << result.unit << '\n' << result.tensors.size() << '\n';
    for (const auto& spec : result.tensors) write(out, spec);
  }
  out << inputs.size() << '\n';
  for (size_t i = 0; i < inputs.size(); ++i) {
    out << (carried[i] ? 1 : 0) << ' ';
    write(out, inputs[i]);
  }
  return out.str();
}

StageShapes StageShapes::from_text(const std::string& text) {
  std::istringstream in(text);
  StageShapes shapes;
  size_t count = 0;
  in >> count;
  shapes.before.resize(count);
  for (auto& result : shapes.before) {
    in >> std::ws;
    std::getline(in, result.unit);
    in >> count;
    for (size_t i = 0; i < count; ++i) result.tensors.push_back(read_spec(in));
  }
  in >> count;
  for (size_t i = 0; i < count; ++i) {
    int carried = 0;
    in >> carried;
    shapes.carried.push_back(carried != 0);
    shapes.inputs.push_back(read_spec(in));
  }
  LEVIN_CHECK(!in.fail(), "[pipeline] what a stage was told of its inputs cannot be read");
  return shapes;
}

Tensor placeholder(const TensorSpec& spec, c10::Device device, bool dense) {
  if (!spec.defined) return {};
  const auto options = at::device(device).dtype(spec.dtype);
  const bool floating = c10::isFloatingType(spec.dtype);
  const c10::Scalar value = floating ? c10::Scalar(std::numeric_limits<double>::quiet_NaN()) : c10::Scalar(0);
  if (dense) return at::full(spec.sizes, value, options);
  return at::full({}, value, options).expand(spec.sizes);
}

}  // namespace levin::detail
