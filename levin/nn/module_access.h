#pragma once

#include <memory>
#include <optional>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

namespace levin::detail {
struct ModuleAccessTag;
}

/// torch::nn::Module keeps its registrations private and has Cloneable, a template, as its friend. This specialization
/// is therefore a friend too: the one door to the registered tensors themselves (the public accessors give copies).
template <>
class torch::nn::Cloneable<levin::detail::ModuleAccessTag> {
 public:
  static auto& parameters(Module& module) { return module.parameters_; }
  static auto& buffers(Module& module) { return module.buffers_; }
  static auto& children(Module& module) { return module.children_; }
  static const auto& parameters(const Module& module) { return module.parameters_; }
  static const auto& buffers(const Module& module) { return module.buffers_; }
  static const auto& children(const Module& module) { return module.children_; }
  static std::optional<std::string>& name(const Module& module) { return module.name_; }
  static void clone_into(Module& target, Module& source, const std::optional<Device>& device) {
    target.clone_(source, device);
  }
};

namespace levin::detail {

using ModuleAccess = torch::nn::Cloneable<ModuleAccessTag>;

/// Every buffer of the module and of those below it. (Module::buffers() puts their names together, which takes longer
/// than all else here.)
template <class F>
void each_buffer(const torch::nn::Module& module, const F& f) {
  for (const auto& item : ModuleAccess::buffers(module))
    if (item.value().defined()) f(item.value());
  for (const auto& child : ModuleAccess::children(module)) each_buffer(*child.value(), f);
}
/// The same of parameters and buffers.
template <class F>
void each_state(const torch::nn::Module& module, const F& f) {
  for (const auto* tensors : {&ModuleAccess::parameters(module), &ModuleAccess::buffers(module)})
    for (const auto& item : *tensors)
      if (item.value().defined()) f(item.value());
  for (const auto& child : ModuleAccess::children(module)) each_state(*child.value(), f);
}

}  // namespace levin::detail
