#include "levin/nn/tie.h"

#include <unordered_map>

#include "levin/core/error.h"
#include "levin/nn/module_access.h"

namespace levin {
namespace {

size_t replace(torch::nn::Module& module, const Tensor& old, const Tensor& source) {
  size_t replaced = 0;
  for (auto& item : detail::ModuleAccess::parameters(module)) {
    if (!item.value().is_same(old)) continue;
    item.value() = source;
    ++replaced;
  }
  for (auto& child : detail::ModuleAccess::children(module)) replaced += replace(*child.value(), old, source);
  return replaced;
}

bool is_registered(const torch::nn::Module& module, const Tensor& tensor) {
  for (const auto& item : detail::ModuleAccess::parameters(module))
    if (item.value().is_same(tensor)) return true;
  for (const auto& child : detail::ModuleAccess::children(module))
    if (is_registered(*child.value(), tensor)) return true;
  return false;
}

}  // namespace

void detail::tie_parameters(torch::nn::Module& owner, Tensor& tied, const Tensor& source) {
  LEVIN_CHECK(tied.defined() && source.defined(),
              "[tie] both parameters must be defined; tie them after they are made");
  if (tied.is_same(source)) return;
  LEVIN_CHECK(
      tied.sizes() == source.sizes() && tied.scalar_type() == source.scalar_type() && tied.device() == source.device(),
      "[tie] parameters of ", tied.sizes(), " ", tied.scalar_type(), " on ", tied.device(), " and ", source.sizes(),
      " ", source.scalar_type(), " on ", source.device(), " cannot be one; shape, dtype and device must be equal");
  // Checked before anything is changed: half a tie would train two parameters that look like one.
  LEVIN_CHECK(is_registered(owner, tied), "[tie] the parameter to be tied is not registered in ", owner.name(),
              " or below; call tie after register_module, with a module that holds it as the first argument");
  const Tensor old = tied;
  replace(owner, old, source);
  tied = source;
}

std::vector<NamedParameter> named_unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  std::unordered_map<const void*, size_t> seen;
  for (const auto& item : module.named_parameters()) {
    const auto [entry, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), result.size());
    if (is_new)
      result.push_back({item.key(), item.value()});
    else
      result[entry->second].aliases.push_back(item.key());
  }
  return result;
}

std::vector<Tensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (auto& parameter : named_unique_parameters(module)) result.push_back(std::move(parameter.tensor));
  return result;
}

}  // namespace levin
