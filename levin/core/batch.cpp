#include "levin/core/batch.h"

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {

Batch::Batch(std::initializer_list<std::pair<std::string_view, Tensor>> items) {
  items_.reserve(items.size());
  for (const auto& [name, tensor] : items) items_.emplace_back(std::string(name), tensor);
}

const Tensor& Batch::operator[](std::string_view name) const {
  for (const auto& [key, tensor] : items_)
    if (key == name) return tensor;
  std::vector<std::string> names;
  for (const auto& item : items_) names.push_back(item.first);
  fail_unknown("batch", "name", name, names);
}

Tensor& Batch::operator[](std::string_view name) {
  for (auto& [key, tensor] : items_)
    if (key == name) return tensor;
  return items_.emplace_back(std::string(name), Tensor()).second;
}

bool Batch::contains(std::string_view name) const {
  for (const auto& item : items_)
    if (item.first == name) return true;
  return false;
}

}  // namespace levin
