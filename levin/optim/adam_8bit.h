#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct Adam8bitOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// L2 penalty: added to the gradient as weight_decay * param.
  double weight_decay = 0;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

struct AdamW8bitOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// Shrinks the parameter itself by lr * weight_decay each step, apart from the gradient.
  double weight_decay = 1e-2;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

/// Parameters with their own values of some options; `.betas = {{0.9, 0.95}}` has two pairs of braces here.
struct Adam8bitGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> maximize = {};
};
using AdamW8bitGroup = Adam8bitGroup;

/// Adam whose running averages take two bytes an element: 8-bit codes of a dynamic map, with one scale for each 256
/// elements of the parameter's memory (Dettmers et al., 2022). Parameters of less than 4096 elements, and double ones,
/// keep float averages. A parameter must keep its memory format once it has been stepped. Its part on a rank, where it
/// is divided, is coded by itself.
class Adam8bit : public Optimizer {
 public:
  explicit Adam8bit(std::vector<Tensor> params, Adam8bitOptions options = {});
  explicit Adam8bit(std::vector<Adam8bitGroup> groups, Adam8bitOptions options = {});
};

/// The same with decoupled decay.
class AdamW8bit : public Optimizer {
 public:
  explicit AdamW8bit(std::vector<Tensor> params, AdamW8bitOptions options = {});
  explicit AdamW8bit(std::vector<AdamW8bitGroup> groups, AdamW8bitOptions options = {});
};

namespace detail {

/// Where the elements of a part begin in the whole parameter, and how many that has.
struct PartOfParam {
  int64_t first = 0;
  int64_t whole_numel = 0;
};
using FindPart = std::function<std::optional<PartOfParam>(const Tensor& param)>;

/// Tells an 8-bit Adam which of its parameters are parts of larger ones; any other optimizer is left alone. Blocks of
/// codes are those of the part, and mean nothing on another number of ranks: so state_dict() has the averages of such a
/// parameter as floats of the part's shape, on the host, and no scales. Loaded where they were, they become the same
/// codes again.
void set_parts(const Optimizer& optimizer, FindPart find);

}  // namespace detail

}  // namespace levin::optim
