#include "levin/loggers/rows.h"

#include <map>

#include "levin/core/error.h"

namespace levin::detail {

size_t HeldRows::name_index(const std::string& name) {
  const auto [found, is_new] = index_.try_emplace(name, names_.size());
  if (is_new) {
    names_.push_back(name);
    last_cell_.push_back(0);
  }
  return found->second;
}

void HeldRows::add(const Metrics& metrics, int64_t step, double time) {
  for (const auto& [name, value] : metrics)
    if (const auto* tensor = std::get_if<at::Tensor>(&value))
      LEVIN_CHECK(tensor->defined() && tensor->numel() == 1 && !tensor->is_complex(), "[log] metric \"", name,
                  "\" must be one real number, and is ",
                  tensor->defined() ? concat("a ", c10::toString(tensor->scalar_type()), " tensor ", tensor->sizes())
                                    : "an undefined tensor");
  const auto first = cells_.size();
  heads_.push_back({step, time, first});
  try {
    for (const auto& [name, value] : metrics) set_cell(cell_of(name, first), value);
  } catch (...) {  // no memory on the device: the row was never there
    heads_.pop_back();
    cells_.erase(cells_.begin() + static_cast<int64_t>(first), cells_.end());
    std::erase_if(on_device_, [&](const OnDevice& held) { return held.cell >= first; });
    for (auto& last : last_cell_) last = last > first ? 0 : last;
    throw;
  }
}

size_t HeldRows::cell_of(const std::string& name, size_t first) {
  const auto id = name_index(name);
  if (last_cell_[id] > first) {  // the name stands twice
    std::erase_if(on_device_, [&](const OnDevice& held) { return held.cell == last_cell_[id] - 1; });
  } else {
    cells_.push_back({id, 0.0});
    last_cell_[id] = cells_.size();
  }
  return last_cell_[id] - 1;
}

void HeldRows::set_cell(size_t at, const MetricValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    cells_[at].value = *number;
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    cells_[at].value = *integer;
  } else if (const auto& tensor = std::get<at::Tensor>(value); tensor.device().is_cpu()) {
    cells_[at].value = number_of(tensor);
  } else {
    // A copy, in the device's own time: the value of now, free of what the tensor is a view of.
    on_device_.push_back({tensor.detach().reshape({}).clone(), at});
  }
}

void HeldRows::read() {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<const OnDevice*>> groups;
  for (const auto& held : on_device_) groups[{held.tensor.device().str(), held.tensor.scalar_type()}].push_back(&held);
  for (const auto& [kind, group] : groups) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(group.size());
    for (const auto* held : group) tensors.push_back(held->tensor);
    const auto values = at::stack(tensors).cpu().unbind();
    for (size_t i = 0; i < group.size(); ++i) cells_[group[i]->cell].value = number_of(values[i]);
  }
  on_device_.clear();
}

HeldRows::Row HeldRows::row(size_t index) const {
  const auto& head = heads_[index];
  const auto end = index + 1 < heads_.size() ? heads_[index + 1].first_cell : cells_.size();
  return {head.step, head.time, std::span(cells_).subspan(head.first_cell, end - head.first_cell)};
}

void HeldRows::clear() {
  heads_.clear();
  cells_.clear();
  on_device_.clear();
  last_cell_.assign(names_.size(), 0);
}

void HeldRows::forget_names() {
  clear();
  names_.clear();
  index_.clear();
  last_cell_.clear();
}

}  // namespace levin::detail
