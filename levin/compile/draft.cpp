#include "levin/compile/draft.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "levin/compile/lower.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

/// A dimension of the space, in the order in which sizes are compared.
struct Dim {
  int64_t size = 1;
  bool reduced = false;
};

/// Which dimensions a node steps through.
enum class Part { kAll, kKept, kReduced, kNone };

struct Member {
  const Node* node = nullptr;
  const LowerRow* row = nullptr;
  LowerSpace space;
  /// Dimensions of the space, outermost in memory first.
  std::vector<size_t> order;
  Part part = Part::kAll;
  bool recomputed = false;
};

int64_t numel_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool is_in(const Dim& dim, Part part) {
  return part == Part::kAll || (part == Part::kReduced && dim.reduced) || (part == Part::kKept && !dim.reduced);
}

using Where = std::vector<std::vector<std::pair<size_t, int64_t>>>;

/// Matches the sizes of a member with dimensions of the space, from the innermost on. Splits these where `may_split`.
std::optional<Where> match(std::vector<Dim>& dims, const Member& member, bool may_split) {
  const auto& sizes = member.space.sizes;
  Where where(sizes.size());
  if (member.part == Part::kNone) return where;
  size_t s = dims.size();
  int64_t left = 1;  // of dims[s]
  const auto next = [&] {
    while (s > 0) {
      --s;
      if (is_in(dims[s], member.part) && dims[s].size > 1) {
        left = dims[s].size;
        return true;
      }
    }
    return false;
  };
  for (size_t k = member.order.size(); k-- > 0;) {
    const auto d = member.order[k];
    int64_t rest = sizes[d], step = 1;
    while (rest > 1) {
      if (left == 1 && !next()) return {};
      const int64_t common = std::min(rest, left);
      if (rest % common || left % common) return {};
      if (left > common) {  // the inner part of the dimension is this one
        if (!may_split) return {};
        dims[s].size = left / common;
        dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(s) + 1, {common, dims[s].reduced});
        // All that was matched stands behind it.
        for (auto& list : where)
          for (auto& entry : list)
            if (entry.first > s) ++entry.first;
        where[d].emplace_back(s + 1, step);
        left = dims[s].size;
      } else {
        where[d].emplace_back(s, step);
        left = 1;
      }
      step *= common, rest /= common;
    }
  }
  if (left != 1) return {};
  while (next()) return {};  // a dimension is left over
  return where;
}

bool is_full(const View& view, const std::vector<int64_t>& sizes) {
  if (view.sizes != sizes) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (view.strides[d] == 0 && sizes[d] > 1) return false;
  return true;
}

void order_dims(Member& member, const std::map<std::pair<StorageId, int32_t>, bool>& inner) {
  const auto& sizes = member.space.sizes;
  member.order.resize(sizes.size());
  std::iota(member.order.begin(), member.order.end(), size_t{0});
  const std::vector<int64_t>* strides = nullptr;
  for (const auto& view : member.node->reads)
    if (inner.contains({view.storage, view.version}) && is_full(view, sizes)) {
      strides = &view.strides;
      break;
    }
  if (!strides && !member.space.strides.empty()) strides = &member.space.strides;
  if (!strides)
    for (const auto* list : {&member.node->writes, &member.node->reads})
      for (const auto& view : *list)
        if (!strides && is_full(view, sizes)) strides = &view.strides;
  if (!strides) return;
  std::stable_sort(member.order.begin(), member.order.end(),
                   [&](size_t a, size_t b) { return (*strides)[a] > (*strides)[b]; });
}

std::optional<LowerSpace> space_of(const Node& node, const LowerRow& row) {
  if (row.space) return row.space(node);
  return LowerSpace{node.writes[0].sizes};
}

}  // namespace

std::optional<Draft> Draft::make(const Graph& graph, const std::vector<int32_t>& nodes,
                                 const std::set<int32_t>& recomputed) {
  std::vector<Member> members;
  std::map<std::pair<StorageId, int32_t>, bool> inner;
  size_t base = 0;
  for (const auto n : nodes) {
    Member member{.node = &graph.nodes[static_cast<size_t>(n)], .recomputed = recomputed.contains(n)};
    member.row = find_lower_row(*member.node);
    if (!member.row) return {};
    auto space = space_of(*member.node, *member.row);
    if (!space || numel_of(space->sizes) == 0) return {};
    member.space = std::move(*space);
    order_dims(member, inner);
    for (const auto& view : member.node->writes) inner[{view.storage, view.version}] = true;
    members.push_back(std::move(member));
    if (numel_of(members.back().space.sizes) > numel_of(members[base].space.sizes)) base = members.size() - 1;
  }
  const int64_t most = numel_of(members[base].space.sizes);
  // Which dimensions are reduced: those of the first reduction, or all others.
  for (const bool flip : {false, true}) {
    std::vector<Dim> dims;
    for (const auto d : members[base].order) dims.push_back({members[base].space.sizes[d]});
    bool fits = true, has_mask = false;
    for (auto& member : members)
      if (numel_of(member.space.sizes) == most) fits = fits && match(dims, member, true);
    for (const auto& member : members) {
      if (!fits || has_mask || numel_of(member.space.sizes) != most || member.space.reduced.empty()) continue;
      const auto where = match(dims, member, false);
      if (!where) {
        fits = false;
        break;
      }
      has_mask = true;
      for (auto& dim : dims) dim.reduced = flip;
      for (size_t d = 0; d < where->size(); ++d)
        for (const auto& [at, step] : (*where)[d])
          if (member.space.reduced[d]) dims[at].reduced = !flip;
    }
    if (!fits) return {};
    if (flip && !has_mask) return {};
    for (auto& member : members) {
      const auto numel = numel_of(member.space.sizes);
      if (numel == most) continue;
      if (numel == 1) {
        member.part = Part::kNone;
        continue;
      }
      if (!has_mask || !member.space.reduced.empty()) {
        fits = false;
        break;
      }
      int64_t kept = 1;
      for (const auto& dim : dims) kept *= dim.reduced ? 1 : dim.size;
      member.part = numel == kept ? Part::kKept : Part::kReduced;
      if (kept * kept == most && numel == kept) {  // as many rows as columns: what it reads tells
        fits = false;
        break;
      }
      fits = fits && match(dims, member, true);
      if (!fits) break;
    }
    if (!fits) continue;
    // Kept dimensions first.
    std::vector<int> place(dims.size());
    Draft draft;
    for (const bool reduced : {false, true}) {
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d].reduced != reduced) continue;
        place[d] = static_cast<int>(draft.group_.sizes.size());
        draft.group_.sizes.push_back(dims[d].size);
        draft.reduced_.push_back(reduced);
      }
      if (!reduced) draft.group_.row_dims = static_cast<int>(draft.group_.sizes.size());
    }
    try {
      for (const auto& member : members) {
        const auto matched = match(dims, member, false);
        if (!matched) throw Unfit{};
        std::vector<std::vector<std::pair<int, int64_t>>> where(matched->size());
        for (size_t d = 0; d < matched->size(); ++d)
          for (const auto& [at, step] : (*matched)[d]) where[d].emplace_back(place[at], step);
        Lower lower(*member.node, draft, member.space, std::move(where), member.recomputed);
        member.row->lower(lower);
        if (!member.recomputed) draft.group_.made_of.push_back(std::string(member.row->name));
      }
      draft.group_.check();
      return draft;
    } catch (const Unfit&) {
    } catch (const Error&) {
    }
    if (!has_mask) return {};
  }
  return {};
}

int64_t Draft::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& slot : loads_) {
    int64_t n = static_cast<int64_t>(c10::elementSize(slot.view.dtype));
    for (size_t d = 0; d < group_.sizes.size(); ++d)
      if (slot.access.strides[d] != 0) n *= group_.sizes[d];
    bytes += n;
  }
  return bytes;
}

Group Draft::finished(const std::vector<bool>& is_wanted, std::vector<Slot>& slots) const {
  Group group = group_;
  std::vector<size_t> stored;
  for (size_t m = 0; m < made_.size(); ++m) {
    if (!is_wanted[m] || made_[m].recomputed) continue;
    bool is_last = true;
    for (size_t later = m + 1; later < made_.size(); ++later)
      if (is_wanted[later] && made_[later].view.storage == made_[m].view.storage) is_last = false;
    if (is_last) stored.push_back(m);
  }
  const int loads = static_cast<int>(loads_.size());
  for (size_t s = 0; s < stored.size(); ++s) {
    auto access = made_[stored[s]].access;
    access.tensor = loads + static_cast<int>(s);
    group.store(access, made_[stored[s]].value);
  }
  if (!has_reduction_) group.row_dims = static_cast<int>(group.sizes.size());
  simplify(group);
  // Tensors that are still read, then those that are written.
  slots.clear();
  std::vector<int> number(loads_.size() + stored.size(), -1);
  for (auto& access : group.accesses) {
    auto& to = number[static_cast<size_t>(access.tensor)];
    if (to < 0) {
      to = static_cast<int>(slots.size());
      slots.push_back(loads_[static_cast<size_t>(access.tensor)]);
    }
    access.tensor = to;
  }
  for (auto& store : group.stores) {
    const auto& made = made_[stored[static_cast<size_t>(store.access.tensor - loads)]];
    store.access.tensor = static_cast<int>(slots.size());
    slots.push_back({made.view, made.access, true});
  }
  std::map<StorageId, int> memories;
  group.memories.clear();
  for (const auto& slot : slots)
    group.memories.push_back(memories.emplace(slot.view.storage, static_cast<int>(memories.size())).first->second);
  return group;
}

}  // namespace levin::compile
