#include "levin/nn/failed_unit.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/utils/cpp_stacktraces.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/nn/unit.h"

namespace levin::detail {
namespace {

constexpr std::string_view kUnit = "unit ";

// Which one it was: an error has room for words only. Read to compare, never to look at.
std::atomic<const torch::nn::Module*> last_failed{nullptr};

const std::string* unit_context(const c10::Error& error) {
  for (const auto& context : error.context())
    if (context.starts_with(kUnit)) return &context;
  return nullptr;
}

void append_input(std::string& text, c10::ScalarType dtype, at::IntArrayRef sizes, bool more) {
  text += fmt::format("{}{} [{}{}]", text.empty() ? "" : ", ", c10::getDtypeNames(dtype).first, fmt::join(sizes, ", "),
                      more ? ", ..." : "");
}

}  // namespace

void describe_input(std::string& text, const at::Tensor& tensor) {
  constexpr size_t kLongest = 400;
  if (tensor.defined() && text.size() < kLongest) append_input(text, tensor.scalar_type(), tensor.sizes(), false);
}

void InputNote<at::Tensor>::describe(std::string& text) const {
  if (dtype_ == c10::ScalarType::Undefined) return;
  const auto known = std::min<size_t>(static_cast<size_t>(dim_), sizes_.size());
  append_input(text, dtype_, at::IntArrayRef(sizes_.data(), known), static_cast<size_t>(dim_) > known);
}

void note_failed_unit(c10::Error& error, const torch::nn::Module& module, const std::string& inputs) noexcept {
  try {
    if (unit_context(error)) return;
    last_failed = &module;
    error.add_context(concat(kUnit, class_name(module), inputs.empty() ? "" : ", input ", inputs));
  } catch (...) {  // the error itself matters more
  }
}

std::string failed_unit(const c10::Error& error, const torch::nn::Module* root) {
  const auto* context = unit_context(error);
  if (!context) return {};
  const auto* failed = last_failed.load();
  if (root && failed)
    for (const auto& item : root->named_modules(std::string(), /*include_self=*/false)) {
      if (item.value().get() != failed) continue;
      const auto name = class_name(*failed);
      const auto rest = std::string_view(*context).substr(kUnit.size());
      if (!rest.starts_with(name)) break;  // that of another error
      return concat(kUnit, item.key(), " (", name, ")", rest.substr(name.size()));
    }
  return *context;
}

void set_context(c10::Error& error, std::string context) {
  // The backtrace stays for those who ask for it.
  c10::Error changed(error.msg(), torch::get_cpp_stacktraces_enabled() ? error.backtrace() : nullptr, error.caller());
  changed.add_context(std::move(context));
  error = changed;
}

std::string first_line(const c10::Error& error) {
  const auto& line = error.msg();
  return line.substr(0, line.find('\n'));
}

void note_failed_call(c10::Error& error, const torch::nn::Module& module, const std::string& inputs) noexcept {
  try {
    auto unit = failed_unit(error, &module);
    if (unit.empty()) unit = concat(kUnit, class_name(module), inputs.empty() ? "" : ", input ", inputs);
    set_context(error, std::move(unit));
  } catch (...) {
  }
}

}  // namespace levin::detail
