#include "levin/core/batch.h"

#include <utility>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {

Batch::Batch(std::initializer_list<std::pair<std::string_view, Tensor>> items) {
  items_.reserve(items.size());
  for (const auto& [name, tensor] : items) {
    LEVIN_CHECK(!contains(name), "[batch] the name \"", name, "\" stands twice");
    items_.emplace_back(std::string(name), tensor);
  }
}

const Tensor& Batch::operator[](std::string_view name) const {
  for (const auto& [key, tensor] : items_)
    if (key == name) return tensor;
  std::vector<std::string> names;
  for (const auto& item : items_) names.push_back(item.first);
  // A name that is near none of them is rather meant to be new than a typing error.
  LEVIN_CHECK(!nearest_word(name, names).empty(), "[batch] name \"", name, "\" is not known (known: ", join(names),
              "); batch.set(\"", name, "\", tensor) adds one");
  fail_unknown("batch", "name", name, names);
}

Tensor& Batch::operator[](std::string_view name) {
  return const_cast<Tensor&>(std::as_const(*this)[name]);
}

void Batch::set(std::string_view name, Tensor tensor) {
  for (auto& [key, old] : items_)
    if (key == name) {
      old = std::move(tensor);
      return;
    }
  items_.emplace_back(std::string(name), std::move(tensor));
}

bool Batch::contains(std::string_view name) const {
  for (const auto& item : items_)
    if (item.first == name) return true;
  return false;
}

}  // namespace levin
