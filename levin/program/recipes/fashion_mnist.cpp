#include "levin/program/recipes/fashion_mnist.h"

namespace levin::cli {

ImageInput fashion_mnist_input() {
  return {.mean = {0.2860}, .std = {0.3530}};
}

Tensor normalized(const Tensor& image) {
  return image.to(at::kFloat).div(255).sub(0.2860).div(0.3530);
}

}  // namespace levin::cli
