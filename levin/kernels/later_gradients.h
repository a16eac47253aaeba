#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

/// Gradients of weights beside the rest of backward. Nothing in backward waits for the gradient of a weight, so in a
/// captured step its product can run on a second stream, while the first computes what is next: norms, attention,
/// gradients of inputs. Products that do not fill the device, and kernels that wait for memory, share it then. Off
/// unless LEVIN_SECOND_STREAM says otherwise.
namespace levin::kernels {

using at::Tensor;

namespace detail {

/// The second stream of one backward. Torch hands it to the threads that compute it.
class LaterQueue : public c10::DebugInfoBase {
 public:
  /// Whether it belongs to the device of the weight and to the current stream there.
  virtual bool takes(const Tensor& weight) const = 0;
  /// Calls `compute`, whose products overlap with the current stream. What they read stays alive until they are done.
  virtual void run(std::vector<Tensor> reads, const std::function<void()>& compute) = 0;
  /// The stream of the backward waits for all of it.
  virtual void wait() = 0;

  /// Parameters and the gradients that they get when backward is over.
  std::vector<std::pair<Tensor, Tensor>> gradients;
};

/// That of the backward which this thread computes, where both parameters may get their gradients later: leaves without
/// a gradient, a hook, or an end of the graph with a hook. `bias` may be undefined. Else null.
LaterQueue* later_queue(const Tensor& weight, const Tensor& bias);

/// Null where the current stream of the device captures no graph, or `products` is 0: how many products may be
/// outstanding. In later_gradients_cuda.cpp, or no_cuda.cpp where there is no CUDA.
std::shared_ptr<LaterQueue> make_later_queue(c10::Device device, int64_t products);

/// LEVIN_SECOND_STREAM: that number, 0 to 8. Throws an Error for another word.
int64_t later_products(std::string_view word);
int64_t later_products_of_environment();

}  // namespace detail

/// One backward of this thread. All gradients that it accumulates go to leaves: as loss.backward(), not as
/// torch::autograd::grad.
class LaterGradients {
 public:
  explicit LaterGradients(c10::Device device)
      : LaterGradients(detail::make_later_queue(device, detail::later_products_of_environment())) {}
  explicit LaterGradients(std::shared_ptr<detail::LaterQueue> queue);
  /// Without finish, as after an exception, no gradient is set; the streams are joined.
  ~LaterGradients();
  LaterGradients(const LaterGradients&) = delete;
  LaterGradients& operator=(const LaterGradients&) = delete;

  /// After backward: sets the gradients, or adds to those that came meanwhile.
  void finish();

 private:
  std::shared_ptr<detail::LaterQueue> queue_;
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace levin::kernels
