#pragma once

#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "levin/core/error.h"

namespace torch::nn {
class Module;
}

namespace levin {

using at::Tensor;

/// How a model is made. Only tensors that are made inside the scope are concerned, and of these only what their maker
/// left open: a tensor that was asked for with a dtype keeps it.
struct InitOptions {
  /// Tensors are born on this device and initialized there.
  std::optional<c10::Device> device = {};
  /// Floating tensors are born in this dtype.
  std::optional<c10::ScalarType> dtype = {};
  /// Parameters are allocated but not initialized: their values will be loaded. Buffers are initialized.
  bool empty = false;
  /// Nothing is allocated; initializers are written down, and `materialize` runs them, in whole or unit by unit, with
  /// the random numbers that they would have drawn now.
  bool deferred = false;
};

/// Makes the tensors of its scope, on this thread, as the options say. Use `init_module`, which also looks after what
/// the constructor of a module left behind.
class InitScope {
 public:
  explicit InitScope(const InitOptions& options);
  ~InitScope();
  InitScope(const InitScope&) = delete;
  InitScope& operator=(const InitScope&) = delete;

  /// Ends the scope for a module that was made in it: moves to the device what was explicitly made elsewhere, and
  /// materializes tensors that are not registered (nobody would find them later).
  void finish(torch::nn::Module& module);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True when a parameter or buffer of the module or below holds no data yet.
bool is_deferred(const torch::nn::Module& module);
bool is_deferred(const Tensor& tensor);

/// Allocates the deferred parameters and buffers of the module and below, and runs their initializers: bit by bit what
/// would have been there without deferring, in whatever order units are materialized. When all is done and nobody has
/// drawn random numbers since, the generator stands where it would have stood, too.
void materialize(torch::nn::Module& module);
/// The same for some tensors. `initialize = false` only allocates.
void materialize(std::span<const Tensor> tensors, bool initialize = true);

namespace detail {
template <class M>
torch::nn::Module* module_of(const M& made) {
  if constexpr (requires { made.ptr(); })
    return made.is_empty() ? nullptr : made.ptr().get();
  else if constexpr (std::is_convertible_v<M, std::shared_ptr<torch::nn::Module>>)
    return made.get();
  else
    static_assert(sizeof(M) == 0,
                  "levin: init_module(f) needs f to return a module: a holder (Block) or shared_ptr<BlockImpl>");
}
}  // namespace detail

/// Makes a module under the options.
///
///     auto model = levin::init_module([] { return Net(1024); }, {.dtype = at::kBFloat16, .deferred = true});
template <class F>
auto init_module(F&& make, const InitOptions& options = {}) {
  InitScope scope(options);
  auto module = std::forward<F>(make)();
  auto* made = detail::module_of(module);
  LEVIN_CHECK(made, "[init_module] the function returned an empty module");
  scope.finish(*made);
  return module;
}

}  // namespace levin
