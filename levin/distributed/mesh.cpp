#include "levin/distributed/mesh.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {

Mesh::Mesh(std::shared_ptr<Collective> group, std::vector<std::pair<std::string, int>> axes)
    : whole_(std::move(group)) {
  const int world = whole_->size();
  LEVIN_CHECK(!axes.empty(), "[mesh] a mesh needs at least one axis");
  int product = 1;
  std::string text;
  std::pair<std::string, int>* open = nullptr;
  for (auto& axis : axes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.first, axis.second);
    LEVIN_CHECK(!axis.first.empty(), "[mesh] an axis has no name");
    LEVIN_CHECK(!has(axis.first), "[mesh] axis \"", axis.first, "\" stands twice");
    LEVIN_CHECK(axis.second > 0 || axis.second == -1, "[mesh] axis \"", axis.first, "\" has size ", axis.second,
                "; 1 or more, or -1 for what the others leave");
    LEVIN_CHECK(axis.second > 0 || !open, "[mesh] only one axis may be -1 (", text, ")");
    if (axis.second == -1)
      open = &axis;
    else
      product *= axis.second;
    axes_.push_back({axis.first, axis.second, 0, nullptr});
  }
  LEVIN_CHECK(open ? world % product == 0 : world == product, "[mesh] ", text, " needs ", open ? "a multiple of " : "",
              product, " ranks, and there ", world == 1 ? "is " : "are ", world);
  for (auto& axis : axes_)
    if (axis.size == -1) axis.size = world / product;

  int stride = world;
  for (auto& axis : axes_) {
    stride /= axis.size;
    axis.coordinate = whole_->rank() / stride % axis.size;
    std::vector<std::vector<int>> groups;
    for (int first = 0; first < world; ++first) {
      if (first / stride % axis.size != 0) continue;
      auto& ranks = groups.emplace_back();
      for (int i = 0; i < axis.size; ++i) ranks.push_back(first + i * stride);
    }
    axis.group = axis.size == world ? whole_ : split_group(*whole_, groups, axis.name);
  }
}

bool Mesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& known) { return known.name == axis; });
}

const Mesh::Axis& Mesh::find(std::string_view axis) const {
  std::vector<std::string> known;
  for (const auto& candidate : axes_) {
    if (candidate.name == axis) return candidate;
    known.push_back(candidate.name);
  }
  fail_unknown("mesh", "axis", axis, known);
}

}  // namespace levin
