#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace levin {

using at::Tensor;

/// Makes two parameters one: `tied` becomes `source`, both as the member that is passed and where it is registered at
/// or below `owner`. Afterwards both names stand for the same tensor, with one gradient. Call it when both are
/// registered, the simplest place being the end of the constructor:
///
///     head = register_module("head", Linear(LinearOptions(width, words).bias(false)));
///     levin::tie(*this, head->weight, embedding->weight);
///
/// An Error when the two differ in shape, dtype or device, or when `tied` is not registered below `owner`.
void tie(torch::nn::Module& owner, Tensor& tied, const Tensor& source);

template <class Impl>
void tie(const torch::nn::ModuleHolder<Impl>& owner, Tensor& tied, const Tensor& source) {
  tie(*owner.ptr(), tied, source);
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
