#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/optimizer.h>

#include "levin/checkpoint/state.h"

// Functions of torch that programs keep calling after fabric.setup, and that know nothing of shards or of scaled
// gradients. These overloads are better matches for what such programs pass; without a Fabric they do what torch does.

namespace levin::detail {

struct FabricCore;

/// Torch's own, for those who have no Fabric.
inline constexpr double (*kClipGradNorm)(const std::vector<at::Tensor>&, double, double,
                                         bool) = &torch::nn::utils::clip_grad_norm_;
inline constexpr at::Tensor (*kParametersToVector)(const std::vector<at::Tensor>&) =
    &torch::nn::utils::parameters_to_vector;

/// From here on parameters of modules that were set up with it are known to the functions below.
void watch_torch_calls(const std::shared_ptr<FabricCore>& core);

/// torch::nn::utils::clip_grad_norm_ by the norm of the full gradients. An Error where gradients are scaled.
double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type,
                      bool error_if_nonfinite);
/// torch::nn::utils::clip_grad_value_. An Error where gradients are scaled.
void clip_grad_value(const std::vector<at::Tensor>& params, double clip_value);
/// torch::nn::utils::parameters_to_vector of the full parameters, also where this rank has shards; then every rank must
/// call, and the result has no graph.
at::Tensor parameters_to_vector(const std::vector<at::Tensor>& params);
/// torch::nn::utils::vector_to_parameters into what this rank has of each parameter. In place.
void vector_to_parameters(const at::Tensor& vec, const std::vector<at::Tensor>& params);

/// Writes a module or an optimizer of several ranks to a file for torch::load: full tensors, whole or not at all. Where
/// parameters or states are shards every rank must call, and rank 0 writes. False: torch's own function is right.
bool save_to_file(const torch::nn::Module& module, const std::string& path);
bool save_to_file(const torch::optim::Optimizer& optimizer, const std::string& path);
bool save_to_file(const Optimizer& optimizer, const std::string& path);
/// Fills an archive with full tensors, on every rank. False: what was given fills it right.
bool put_full(const torch::nn::Module& module, torch::serialize::OutputArchive& archive);
bool put_full(const torch::optim::Optimizer& optimizer, torch::serialize::OutputArchive& archive);
bool put_full(const Optimizer& optimizer, torch::serialize::OutputArchive& archive);

/// Throws where one of them is this rank's shard, which torch::save would write as if it were everything.
void check_no_shards(const std::vector<at::Tensor>& tensors);

/// What torch::load reads from, as a file. The device that it may name is that of the parameters anyway.
class TorchInput {
 public:
  using Device = std::optional<c10::Device>;
  using Read = std::function<size_t(uint64_t pos, void* buf, size_t nbytes)>;

  explicit TorchInput(std::string path, Device = {}) : path_(std::move(path)) {}
  explicit TorchInput(std::istream& stream, Device = {});
  TorchInput(const char* data, size_t size, Device = {});
  TorchInput(const Read& read, const std::function<size_t()>& size, Device = {});
  ~TorchInput();
  TorchInput(const TorchInput&) = delete;
  TorchInput& operator=(const TorchInput&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

/// The Fabric that a module or an optimizer was set up with; null: none. An Error for an optimizer of sharded
/// parameters that was not set up.
std::shared_ptr<FabricCore> core_of(const torch::nn::Module& module);
std::shared_ptr<FabricCore> core_of(const torch::optim::Optimizer& optimizer);
std::shared_ptr<FabricCore> core_of(const Optimizer& optimizer);
/// Loads into what a Fabric has made of it: in place, each rank its own shard. Every rank must call.
void load_from(const std::shared_ptr<FabricCore>& core, torch::nn::Module& module, const TorchInput& input);
void load_from(const std::shared_ptr<FabricCore>& core, torch::optim::Optimizer& optimizer, const TorchInput& input);
void load_from(const std::shared_ptr<FabricCore>& core, Optimizer& optimizer, const TorchInput& input);

template <class T>
concept SavedByTorch = ModuleHolder<T> || SharedModule<T> || std::derived_from<T, torch::optim::Optimizer> ||
    std::derived_from<T, Optimizer>;

template <class T>
const auto& module_or_optimizer(const T& value) {
  if constexpr (std::derived_from<T, torch::optim::Optimizer>)
    return static_cast<const torch::optim::Optimizer&>(value);
  else if constexpr (std::derived_from<T, Optimizer>)
    return static_cast<const Optimizer&>(value);
  else
    return static_cast<const torch::nn::Module&>(*value.operator->());
}

}  // namespace levin::detail

namespace torch::nn::utils {

/// Const vectors, lists and single tensors are a perfect match for torch's own functions, which would take one rank's
/// shards for everything. With these a call is ambiguous, and does not compile: pass net->parameters() itself, or write
/// fabric.clip_gradients.
inline namespace pass_net_parameters_themselves {
double clip_grad_norm_(const std::vector<at::Tensor>&, double, double = 2.0, bool = false) = delete;
double clip_grad_norm_(std::initializer_list<at::Tensor>, double, double = 2.0, bool = false) = delete;
double clip_grad_norm_(at::Tensor, double, double = 2.0, bool = false) = delete;
at::Tensor parameters_to_vector(const std::vector<at::Tensor>&) = delete;
}  // namespace pass_net_parameters_themselves

inline double clip_grad_norm_(std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return levin::detail::clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
}
inline double clip_grad_norm_(std::vector<at::Tensor>&& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return levin::detail::clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
}
inline void clip_grad_value_(std::vector<at::Tensor>& parameters, double clip_value) {
  levin::detail::clip_grad_value(parameters, clip_value);
}
inline void clip_grad_value_(std::vector<at::Tensor>&& parameters, double clip_value) {
  levin::detail::clip_grad_value(parameters, clip_value);
}
inline at::Tensor parameters_to_vector(std::vector<at::Tensor>& parameters) {
  return levin::detail::parameters_to_vector(parameters);
}
inline at::Tensor parameters_to_vector(std::vector<at::Tensor>&& parameters) {
  return levin::detail::parameters_to_vector(parameters);
}
inline void vector_to_parameters(const at::Tensor& vec, std::vector<at::Tensor>& parameters) {
  levin::detail::vector_to_parameters(vec, parameters);
}
inline void vector_to_parameters(const at::Tensor& vec, std::vector<at::Tensor>&& parameters) {
  levin::detail::vector_to_parameters(vec, parameters);
}

}  // namespace torch::nn::utils

namespace torch {

template <typename Value, typename... SaveToArgs>
requires levin::detail::SavedByTorch<Value>
void save(const Value& value, SaveToArgs&&... args) {
  const auto& object = levin::detail::module_or_optimizer(value);
  if constexpr (sizeof...(SaveToArgs) == 1 && (std::convertible_to<SaveToArgs&&, std::string> && ...))
    if (levin::detail::save_to_file(object, std::string(args)...)) return;
  serialize::OutputArchive archive;
  if (!levin::detail::put_full(object, archive)) {
    if constexpr (!std::derived_from<Value, levin::Optimizer>) object.save(archive);
  }
  archive.save_to(std::forward<SaveToArgs>(args)...);
}

template <std::same_as<at::Tensor> Value, typename... SaveToArgs>
void save(const Value& tensor, SaveToArgs&&... args) {
  levin::detail::check_no_shards({tensor});
  serialize::OutputArchive archive;
  archive.write("0", tensor);  // as torch does
  archive.save_to(std::forward<SaveToArgs>(args)...);
}
template <typename... SaveToArgs>
void save(std::vector<at::Tensor>& tensors, SaveToArgs&&... args) {
  levin::detail::check_no_shards(tensors);
  save(std::as_const(tensors), std::forward<SaveToArgs>(args)...);
}
template <typename... SaveToArgs>
void save(std::vector<at::Tensor>&& tensors, SaveToArgs&&... args) {
  save(tensors, std::forward<SaveToArgs>(args)...);
}

template <typename Value, typename... LoadFromArgs>
requires levin::detail::SavedByTorch<Value>
void load(Value& value, LoadFromArgs&&... args) {
  const auto& given = levin::detail::module_or_optimizer(value);
  auto& object = const_cast<std::remove_cvref_t<decltype(given)>&>(given);
  const auto core = levin::detail::core_of(given);
  if (core || std::derived_from<Value, levin::Optimizer>) {
    const levin::detail::TorchInput input(std::forward<LoadFromArgs>(args)...);
    return levin::detail::load_from(core, object, input);
  }
  if constexpr (!std::derived_from<Value, levin::Optimizer>) {
    serialize::InputArchive archive;
    archive.load_from(std::forward<LoadFromArgs>(args)...);
    object.load(archive);
  }
}

}  // namespace torch
