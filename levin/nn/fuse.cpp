#include "levin/nn/fuse.h"

#include <array>
#include <functional>
#include <typeinfo>

#include <torch/nn/modules/container/sequential.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/layers.h"
#include "levin/nn/module_access.h"

namespace levin {
namespace {

using detail::ModuleAccess;
using torch::nn::AnyModule;
using torch::nn::Module;

/// A class derived from torch's may have another forward: only the class itself counts.
template <class Impl>
bool is_exactly(const Module& module) {
  return typeid(module) == typeid(Impl);
}

/// The class itself, or a unit of it that nobody intercepts.
template <class Impl>
bool is_free(const Module& module) {
  if (is_exactly<Impl>(module)) return true;
  const auto* unit = dynamic_cast<const Hooked<Impl>*>(&module);
  return unit && unit->num_interceptors() == 0;
}

nn::Conv2dOptions options_of(const torch::nn::Conv2dImpl& layer) {
  const auto& o = layer.options;
  return nn::Conv2dOptions(o.in_channels(), o.out_channels(), o.kernel_size())
      .stride(o.stride())
      .padding(o.padding())
      .dilation(o.dilation())
      .groups(o.groups())
      .bias(o.bias())
      .padding_mode(o.padding_mode());
}
template <class Impl>
auto options_of(const Impl& layer) {
  return layer.options;
}

/// A layer of Levin's with the tensors of one of torch's. It is made on meta: nothing is allocated, and no random
/// number is drawn.
template <class Holder, class Impl>
AnyModule remade(Module& module) {
  auto& old = *module.as<Impl>();
  Holder made = init_module([&] { return Holder(options_of(old)); }, {.device = c10::Device(c10::kMeta)});
  for (const auto& item : ModuleAccess::parameters(old)) ModuleAccess::parameters(*made)[item.key()] = item.value();
  for (const auto& item : ModuleAccess::buffers(old)) ModuleAccess::buffers(*made)[item.key()] = item.value();
  if constexpr (requires { old.weight; }) {
    made->weight = old.weight;
    made->bias = old.bias;
  }
  if constexpr (requires { old.running_mean; }) {
    made->running_mean = old.running_mean;
    made->running_var = old.running_var;
    made->num_batches_tracked = old.num_batches_tracked;
  }
  made->train(old.is_training());
  return AnyModule(made.ptr());
}

struct Replacement {
  bool (*fits)(const Module&);
  AnyModule (*make)(Module&);
};

constexpr std::array kReplacements{
    Replacement{is_exactly<torch::nn::BatchNorm2dImpl>, remade<nn::BatchNorm2d, torch::nn::BatchNorm2dImpl>},
    Replacement{is_exactly<torch::nn::Conv2dImpl>, remade<nn::Conv2d, torch::nn::Conv2dImpl>},
    Replacement{is_exactly<torch::nn::LayerNormImpl>, remade<nn::LayerNorm, torch::nn::LayerNormImpl>},
    Replacement{is_exactly<torch::nn::LinearImpl>, remade<nn::Linear, torch::nn::LinearImpl>},
    Replacement{is_exactly<torch::nn::MaxPool2dImpl>, remade<nn::MaxPool2d, torch::nn::MaxPool2dImpl>},
};

const Replacement* replacement_of(const Module& module) {
  for (const auto& each : kReplacements)
    if (each.fits(module)) return &each;
  return nullptr;
}

int64_t fuse_children(torch::nn::SequentialImpl& sequence) {
  int64_t replaced = 0;
  auto& children = ModuleAccess::children(sequence);
  const auto put = [&](size_t i, AnyModule made) {
    children[i].value() = made.ptr();
    *(sequence.begin() + static_cast<std::ptrdiff_t>(i)) = std::move(made);
  };
  for (size_t i = 0; i < sequence.size(); ++i) {
    auto& layer = *sequence.ptr(i);
    const bool is_norm = is_exactly<torch::nn::BatchNorm2dImpl>(layer) || is_free<nn::BatchNorm2dImpl>(layer);
    if (is_norm && i + 1 < sequence.size() && is_free<torch::nn::ReLUImpl>(*sequence.ptr(i + 1))) {
      put(i, remade<nn::BatchNormReLU2d, torch::nn::BatchNorm2dImpl>(layer));
      put(i + 1, AnyModule(nn::Identity().ptr()));
      ++replaced;
    } else if (const auto* replacement = replacement_of(layer)) {
      put(i, replacement->make(layer));
      ++replaced;
    }
  }
  return replaced;
}

void fuse_below(Module& module, const std::string& path, FuseReport& report) {
  auto* sequence = module.as<torch::nn::SequentialImpl>();
  if (sequence) report.replaced += fuse_children(*sequence);
  for (const auto& item : ModuleAccess::children(module)) {
    const auto name = path.empty() ? item.key() : path + "." + item.key();
    if (replacement_of(*item.value()))
      report.left.push_back(detail::concat(name, " (", class_name(*item.value()), ")"));
    else
      fuse_below(*item.value(), name, report);
  }
}

}  // namespace

FuseReport fuse(torch::nn::Module& module) {
  FuseReport report;
  fuse_below(module, "", report);
  if (report.left.empty()) return report;
  constexpr size_t kNamed = 8;
  std::string names;
  for (size_t i = 0; i < report.left.size() && i < kNamed; ++i)
    names += detail::concat(names.empty() ? "" : ", ", report.left[i]);
  if (report.left.size() > kNamed) names += detail::concat(" and ", report.left.size() - kNamed, " more");
  log_warning(detail::concat("[fuse] these layers are members of a class and stay torch's: ", names,
                             "; declare them as levin::nn layers"));
  return report;
}

}  // namespace levin
