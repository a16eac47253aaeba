#include "levin/program/recipes/cifar10.h"

#include "levin/core/error.h"
#include "levin/data/cifar.h"

namespace levin::cli {

ImageData Cifar10::load() const {
  LEVIN_CHECK(drawn_ >= 0, "[recipe] data.drawn must not be negative, got ", drawn_);
  return drawn_ > 0 ? draw_color_shapes(drawn_, std::max<int64_t>(drawn_ / 5, 1)) : load_cifar10(folder_);
}

ImageInput cifar10_input() {
  return {.mean = {0.4914, 0.4822, 0.4465}, .std = {0.2470, 0.2435, 0.2616}, .shift = 4, .flip = 0.5};
}

}  // namespace levin::cli
