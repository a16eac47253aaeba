#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include "levin/kernels/fp8/fp8.h"

namespace levin::kernels {

class Fp8Layers;

namespace detail {

/// What the linears of one forward share, also with their backward and with a forward that is repeated for it.
struct Fp8Context final : c10::intrusive_ptr_target {
  std::shared_ptr<Fp8Layers> layers;
  /// The largest numbers of the histories when the forward began, [slots].
  Tensor amax;
  /// Slots that have a history. The others take their scale from the tensor at hand.
  std::vector<bool> has_history;
  /// A forward without gradients leaves no trace in the histories.
  bool records = false;

  /// Casts of weights and biases. As with autocast they are kept until the scope ends: nothing tells whether a weight
  /// has changed since.
  std::unordered_map<c10::TensorImpl*, Fp8Cast> weights;
  std::unordered_map<c10::TensorImpl*, Tensor> biases;
};
using Fp8ContextPtr = c10::intrusive_ptr<Fp8Context>;

/// That of this thread, or null.
const Fp8ContextPtr& fp8_context();

/// Makes a context that of this thread, and puts back what was there.
class Fp8ContextScope {
 public:
  explicit Fp8ContextScope(Fp8ContextPtr context);
  ~Fp8ContextScope();
  Fp8ContextScope(const Fp8ContextScope&) = delete;
  Fp8ContextScope& operator=(const Fp8ContextScope&) = delete;

 private:
  Fp8ContextPtr before_;
};

enum class Fp8Operand : uint8_t { kInput, kWeight, kGradient };

}  // namespace detail

struct Fp8Setup {
  Fp8Options options = {};
  /// Where the module computes.
  c10::Device device = c10::Device(c10::kCPU);
  /// Weights do not stay in memory between forward and backward: they are cast again rather than saved in float8.
  bool casts_weights_again = false;
};

/// The weights of a module that are multiplied in float8, and the largest numbers seen with each of them.
///
/// These are its matrices with sizes that are multiples of 16, without the first and the last weight of the module:
/// patches or embeddings, and the head.
class Fp8Layers : public std::enable_shared_from_this<Fp8Layers> {
 public:
  /// Before parameters are sharded: it reads their sizes.
  Fp8Layers(std::shared_ptr<const torch::nn::Module> module, const Fp8Setup& setup);

  const Fp8Options& options() const { return setup_.options; }
  bool casts_weights_again() const { return setup_.casts_weights_again; }
  /// Names of these weights.
  const std::vector<std::string>& names() const { return names_; }
  /// Their largest numbers, newest first: [weights, 3 (input, weight, gradient), history]. Undefined before the first
  /// forward with gradients, and with recipes that need no history.
  Tensor history() const;

  /// At the beginning of a forward: what was seen since the last one becomes history.
  detail::Fp8ContextPtr begin();
  std::optional<int64_t> index_of(const Tensor& weight) const;
  /// A matrix that belongs to the layer with that index. Of `wanted` dtype, scales and margin are the layer's own.
  Fp8Cast cast(const detail::Fp8Context& context, int64_t index, detail::Fp8Operand operand, const Tensor& matrix,
               Fp8CastOptions wanted);

  /// The histories, what was seen since, and for each how far it is (1: something was seen, 2: it has a history):
  /// [weights, 3, history + 2], on the CPU. What a resumed run needs to continue with the same scales. Undefined with
  /// recipes that need no history.
  Tensor state() const;
  /// `names` are those of the weights in `state`. A weight that is not among them begins without a history; of
  /// histories of another length the newest numbers are taken.
  void load_state(const std::vector<std::string>& names, const Tensor& state);

 private:
  void bind();
  void make_histories();
  bool is_delayed() const { return setup_.options.recipe == Fp8Recipe::kDelayed; }

  std::shared_ptr<const torch::nn::Module> module_;
  Fp8Setup setup_;
  std::vector<std::string> names_;
  struct Weight {
    /// Holds the address, so that no other tensor gets it.
    c10::weak_intrusive_ptr<c10::TensorImpl> held;
    int64_t index;
  };
  std::unordered_map<c10::TensorImpl*, Weight> weights_;
  std::mutex mutex_;
  bool bound_ = false;
  int64_t forwards_ = 0;
  Tensor history_, seen_;  // [slots, H], [slots]
  Tensor amax_;
  std::vector<bool> has_history_;
  /// Set by the threads of forward and backward.
  std::unique_ptr<std::atomic<bool>[]> recorded_;
  std::atomic<bool> used_ = false;
};

/// Linears of its scope and thread multiply in float8 where they can, if autocast is on as well.
class Fp8Scope {
 public:
  explicit Fp8Scope(const std::shared_ptr<Fp8Layers>& layers);

 private:
  std::optional<detail::Fp8ContextScope> scope_;
};

/// The index of the layer if x and weight are to be multiplied in float8 here.
std::optional<int64_t> fp8_layer(const Tensor& x, const Tensor& weight);

/// x [..., K] and weight [N, K] of the layer `index` of the context of this thread: [..., N] in bfloat16. Saved for
/// backward are x and the weight, both in float8. It has no second derivative, and says so.
Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t index);

/// A linear layer in float8.
struct Fp8Factor {
  Tensor weight, bias;
  int64_t index = 0;
};
/// Both layers if they, with an activation between them, can be one operation here: both multiply in float8 with
/// weights that stay in memory, and none of them is frozen.
std::optional<std::pair<Fp8Factor, Fp8Factor>> fp8_pair(const Tensor& x, const Tensor& up, const Tensor& up_bias,
                                                        const Tensor& down, const Tensor& down_bias);
/// down(activation(up(x))), with the numbers of the three operations. The activation is computed while its result is
/// cast to float8, and its derivative while the gradient is, so neither is written in bfloat16.
Tensor fp8_mlp(const Tensor& x, const Fp8Factor& up, Activation kind, const Fp8Factor& down);

}  // namespace levin::kernels
