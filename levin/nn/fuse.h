#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

struct FuseReport {
  /// Layers of torch that are Levin's now.
  int64_t replaced = 0;
  /// Layers of torch that stay, as "encoder.norm (LayerNorm)": members of a class, which calls them by their own type.
  std::vector<std::string> left;
};

/// Replaces layers of torch below the module by Levin's, which are fused on CUDA (levin/nn/layers.h): in every
/// torch::nn::Sequential, BatchNorm2d with a ReLU behind it becomes BatchNormReLU2d (and the ReLU an Identity, so that
/// names and indices stay), and BatchNorm2d, Conv2d, LayerNorm, Linear and MaxPool2d become those of levin::nn.
/// Parameters and buffers are the same tensors under the same names, so optimizers and checkpoints keep working. Layers
/// of classes derived from torch's, and units with interceptors, stay as they are.
///
/// What a class has as a member cannot be replaced from outside: C++ calls a member by its declared type. Such layers
/// are named in the report, and one warning is logged; declare them as levin::nn::Linear and so on.
///
/// `sequential->at<BatchNorm2dImpl>(i)` wants the exact class and finds none afterwards; `ptr(i)->as<...>()` does.
///
///     levin::fuse(*net);  // before training, and before units get interceptors
FuseReport fuse(torch::nn::Module& module);

}  // namespace levin
