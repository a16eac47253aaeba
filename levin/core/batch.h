#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

/// A few named tensors, in order: what a data loader hands out unless a program has its own batch type.
///
///     levin::Batch batch{{"image", images}, {"label", labels}};
///     auto logits = net(batch["image"]);
class Batch {
 public:
  Batch() = default;
  /// A name that stands twice is an Error.
  Batch(std::initializer_list<std::pair<std::string_view, Tensor>> items);

  /// The tensor of that name; an Error with the nearest name when there is none. `batch["image"] = tensor` replaces a
  /// tensor that is there; set() adds one.
  const Tensor& operator[](std::string_view name) const;
  Tensor& operator[](std::string_view name);
  /// Adds a tensor, or replaces the one of that name.
  void set(std::string_view name, Tensor tensor);

  bool contains(std::string_view name) const;
  bool empty() const { return items_.empty(); }
  /// Number of named tensors.
  size_t size() const { return items_.size(); }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  template <class F>
  void each_tensor(F&& f) {
    for (auto& [name, tensor] : items_) f(tensor);
  }
  template <class F>
  void each_tensor(F&& f) const {
    for (const auto& [name, tensor] : items_) f(tensor);
  }

 private:
  std::vector<std::pair<std::string, Tensor>> items_;
};

}  // namespace levin
