#include "levin/distributed/mesh.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/distributed/single.h"

namespace levin {
namespace {

using Axes = std::vector<std::pair<std::string, int>>;

std::string text_of(const Axes& axes) {
  std::string text;
  for (const auto& [name, size] : axes) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  return text;
}

/// Fills in what is -1; an Error when the product is not the number of ranks.
Axes resolved(Axes axes, int ranks) {
  int product = 1;
  int* open = nullptr;
  // Axes of size 1 say nothing in an error.
  auto shown = axes;
  std::erase_if(shown, [](const auto& axis) { return axis.second == 1; });
  const auto text = text_of(shown.empty() ? axes : shown);
  for (auto& [name, size] : axes) {
    LEVIN_CHECK(size > 0 || size == -1, "[mesh] axis \"", name, "\" has size ", size,
                "; 1 or more, or -1 for what the others leave");
    LEVIN_CHECK(size > 0 || !open, "[mesh] only one axis may be -1 (", text, ")");
    if (size == -1)
      open = &size;
    else
      product *= size;
  }
  const auto there = fmt::format(", and there {} {} rank{}", ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s");
  LEVIN_CHECK(!open || ranks % product == 0, "[mesh] ", text, " needs a multiple of ", product, " ranks", there);
  LEVIN_CHECK(open || ranks == product, "[mesh] ", text, " = ", product, there);
  if (open) *open = ranks / product;
  return axes;
}

Axes axes_of(const ParallelSizes& sizes) {
  return {{"pp", sizes.pp},
          {"dp_replicate", sizes.dp_replicate},
          {"dp_shard", sizes.dp_shard},
          {"cp", sizes.cp},
          {"tp", sizes.tp}};
}

}  // namespace

ParallelSizes ParallelSizes::over(int ranks) const {
  const auto axes = resolved(axes_of(*this), ranks);
  ParallelSizes sizes{axes[0].second, axes[1].second, axes[2].second, axes[3].second, axes[4].second, ep};
  const int fsdp = sizes.dp_shard * sizes.cp;
  if (ep == -1) sizes.ep = fsdp;
  LEVIN_CHECK(sizes.ep >= 1 && fsdp % sizes.ep == 0, "[mesh] ep ", ep, " does not divide dp_shard ", sizes.dp_shard,
              " x cp ", sizes.cp, " = ", fsdp, ", over which experts are spread");
  return sizes;
}

std::string ParallelSizes::text() const {
  auto axes = axes_of(*this);
  axes.emplace_back("ep", ep);
  std::erase_if(axes, [](const auto& axis) { return axis.second == 1; });
  return axes.empty() ? "1" : text_of(axes);
}

Mesh::Mesh(std::shared_ptr<Collective> group, const Axes& axes) : whole_(std::move(group)) {
  LEVIN_CHECK(!axes.empty(), "[mesh] a mesh needs at least one axis");
  for (size_t i = 0; i < axes.size(); ++i) {
    LEVIN_CHECK(!axes[i].first.empty(), "[mesh] an axis has no name");
    for (size_t j = 0; j < i; ++j)
      LEVIN_CHECK(axes[i].first != axes[j].first, "[mesh] axis \"", axes[i].first, "\" stands twice");
  }
  int stride = whole_->size();
  for (const auto& [name, size] : resolved(axes, whole_->size())) add(name, size, stride /= size);
}

Mesh::Mesh(std::shared_ptr<Collective> group, const ParallelSizes& given) : whole_(std::move(group)) {
  const auto sizes = given.over(whole_->size());
  int stride = whole_->size();
  for (const auto& [name, size] : axes_of(sizes)) add(name, size, stride /= size);
  fold("batch", "dp_replicate", "dp_shard");
  fold("fsdp", "dp_shard", "cp");
  fold("loss", "dp_replicate", "cp");
  const int fsdp = size("fsdp");
  add("ep", sizes.ep, sizes.tp);
  add("expert_shard", fsdp / sizes.ep, sizes.tp * sizes.ep);
  add("expert_loss", sizes.dp_replicate * fsdp / sizes.ep, sizes.tp * sizes.ep);
}

void Mesh::fold(const std::string& name, std::string_view outer, std::string_view inner) {
  LEVIN_CHECK(!has(name), "[mesh] axis \"", name, "\" stands twice");
  const auto &first = find(outer), &last = find(inner);
  add(name, first.size * first.stride / last.stride, last.stride);
}

void Mesh::add(const std::string& name, int size, int stride) {
  Axis axis{name, size, stride, whole_->rank() / stride % size, nullptr};
  // The same ranks are one group, whatever it is called: connections are costly.
  for (const auto& known : axes_)
    if (known.size == size && (known.stride == stride || size == 1)) axis.group = known.group;
  if (!axis.group && size == whole_->size()) axis.group = whole_;
  if (!axis.group && size == 1) axis.group = std::make_shared<SingleCollective>();
  if (!axis.group) {
    std::vector<std::vector<int>> groups;
    for (int first = 0; first < whole_->size(); ++first) {
      if (first / stride % size != 0) continue;
      auto& ranks = groups.emplace_back();
      for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
    }
    axis.group = split_group(*whole_, groups, name);
  }
  axes_.push_back(std::move(axis));
}

bool Mesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& known) { return known.name == axis; });
}

int Mesh::rank_at(std::string_view axis, int place) const {
  const auto& found = find(axis);
  return whole_->rank() + (place - found.coordinate) * found.stride;
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
