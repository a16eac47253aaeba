#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "levin/core/each_tensor.h"

namespace torch::nn {
class Module;
}

namespace levin::detail {

/// Appends "float32 [4, 3]".
void describe_input(std::string& text, const at::Tensor& tensor);

/// What a forward that throws could be asked about an argument. One that is passed by reference is still there then.
template <class P>
class InputNote {
 public:
  explicit InputNote(const std::remove_reference_t<P>& argument) : argument_(&argument) {}
  void describe(std::string& text) const {
    using T = std::remove_cvref_t<P>;
    if constexpr (TensorNest<T> && std::is_lvalue_reference_v<P>)
      each_tensor(const_cast<T&>(*argument_), [&](const at::Tensor& tensor) { describe_input(text, tensor); });
  }

 private:
  const std::remove_reference_t<P>* argument_;
};

/// A tensor that is passed by value is consumed: its shape is written down before.
template <>
class InputNote<at::Tensor> {
 public:
  explicit InputNote(const at::Tensor& tensor) : dtype_(c10::ScalarType::Undefined), dim_(0) {
    if (!tensor.defined()) return;
    const auto sizes = tensor.sizes();
    dtype_ = tensor.scalar_type();
    dim_ = static_cast<int>(sizes.size());
    for (size_t i = 0; i < sizes.size() && i < sizes_.size(); ++i) sizes_[i] = sizes[i];
  }
  void describe(std::string& text) const;

 private:
  c10::ScalarType dtype_;
  int dim_;
  std::array<int64_t, 6> sizes_{};
};

/// Notes which unit an error of torch came out of, with its inputs; the innermost unit counts.
void note_failed_unit(c10::Error& error, const torch::nn::Module& module, const std::string& inputs) noexcept;

/// "unit net.block (Block), input float32 [4, 3]" of an error that a unit let through, with its path below `root` where
/// that is known; empty when no unit did.
std::string failed_unit(const c10::Error& error, const torch::nn::Module* root);

/// Makes `context` the only one of an error, which stays of its class: "message (context)", in one line.
void set_context(c10::Error& error, std::string context);

/// The first line of the message of an error of torch, without backtrace and context.
std::string first_line(const c10::Error& error);

/// What a module that was set up adds to an error of torch that its call let through.
void note_failed_call(c10::Error& error, const torch::nn::Module& module, const std::string& inputs) noexcept;

}  // namespace levin::detail
