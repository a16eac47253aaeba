#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace levin {

using at::Tensor;

namespace detail {
template <class M>
concept ModuleOrHolder = std::derived_from<std::remove_cv_t<M>, torch::nn::Module> || requires(M& m) {
  m.ptr()->parameters();
};

template <class M>
torch::nn::Module& module_in(M& owner) {
  if constexpr (std::derived_from<M, torch::nn::Module>)
    return owner;
  else
    return *owner.ptr();
}

void tie_parameters(torch::nn::Module& owner, Tensor& tied, const Tensor& source);
}  // namespace detail

/// Makes two parameters one: `tied` becomes `source`, both as the member that is passed and where it is registered at
/// or below `owner`. Afterwards both names stand for the same tensor, with one gradient. Call it when both are
/// registered, the simplest place being the end of the constructor:
///
///     head = register_module("head", Linear(LinearOptions(width, words).bias(false)));
///     levin::tie(*this, head->weight, embedding->weight);
///
/// An Error when the two differ in shape, dtype or device, or when `tied` is not registered below `owner`.
///
/// (Templates, because an unqualified `tie` with plain arguments would find std::tie, which does nothing, and prefer
/// it.)
template <detail::ModuleOrHolder M>
void tie(M& owner, Tensor& tied, Tensor& source) {
  detail::tie_parameters(detail::module_in(owner), tied, source);
}
template <detail::ModuleOrHolder M>
void tie(M& owner, Tensor& tied, const Tensor& source) {
  detail::tie_parameters(detail::module_in(owner), tied, source);
}

/// A parameter, counted once, with every name it has.
struct NamedParameter {
  /// The first name, in the order of registration.
  std::string name;
  Tensor tensor;
  /// The other names of a tied parameter.
  std::vector<std::string> aliases = {};
};

/// Parameters of a module and all below it; a tied parameter comes once, where it is met first. torch's own
/// `module.parameters()` lists it as often as it is registered.
std::vector<NamedParameter> named_unique_parameters(const torch::nn::Module& module);
std::vector<Tensor> unique_parameters(const torch::nn::Module& module);

}  // namespace levin
