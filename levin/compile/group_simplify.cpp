#include <algorithm>
#include <numeric>

#include "levin/compile/group.h"

namespace levin::compile {
namespace {

/// Copies the values that stores need, in order, and lets equal ones fall together.
void keep_needed(Group& group, bool keep_roundings) {
  std::vector<bool> needed(group.values.size(), false);
  for (const auto& store : group.stores) needed[static_cast<size_t>(store.value)] = true;
  for (size_t i = group.values.size(); i-- > 0;)
    if (needed[i])
      for (const int arg : group.values[i].args)
        if (arg >= 0) needed[static_cast<size_t>(arg)] = true;
  auto old_values = std::move(group.values);
  auto old_accesses = std::move(group.accesses);
  group.values.clear(), group.accesses.clear();
  std::vector<int> at(old_values.size(), -1);
  for (size_t i = 0; i < old_values.size(); ++i) {
    if (!needed[i]) continue;
    auto value = old_values[i];
    for (int& arg : value.args)
      if (arg >= 0) arg = at[static_cast<size_t>(arg)];
    if (value.op == ScalarOp::kCast) {
      const auto& from = group.values[static_cast<size_t>(value.args[0])];
      const bool rounds_only = value.implicit && from.number == value.number && value.number == Number::kFloat;
      at[i] = rounds_only && !keep_roundings ? value.args[0] : group.cast(value.args[0], value.dtype, value.implicit);
    } else if (value.op == ScalarOp::kLoad) {
      const auto& access = old_accesses[static_cast<size_t>(value.place)];
      at[i] = group.load(access, value.args[0], value.gather_stride, value.gather_size, value.args[1]);
    } else if (value.op == ScalarOp::kNumber && (value.number == Number::kFloat || value.number == Number::kDouble)) {
      at[i] = group.real(value.real, value.number);
    } else {
      at[i] = group.add(value);
    }
  }
  for (auto& store : group.stores) store.value = at[static_cast<size_t>(store.value)];
}

template <class Change>
void each_access(Group& group, Change&& change) {
  for (auto& access : group.accesses) change(access);
  for (auto& store : group.stores) change(store.access);
}

/// Dimensions in another order; `order` has the old place of each.
void reorder(Group& group, const std::vector<size_t>& order) {
  const auto moved = [&](const std::vector<int64_t>& from) {
    std::vector<int64_t> to;
    for (const auto d : order) to.push_back(from[d]);
    return to;
  };
  group.sizes = moved(group.sizes);
  each_access(group, [&](Access& access) { access.strides = moved(access.strides); });
  for (auto& value : group.values)
    if (value.op == ScalarOp::kIndex)
      value.place =
          static_cast<int>(std::find(order.begin(), order.end(), static_cast<size_t>(value.place)) - order.begin());
}

void erase_dim(Group& group, size_t d) {
  group.sizes.erase(group.sizes.begin() + static_cast<int64_t>(d));
  each_access(group, [&](Access& access) { access.strides.erase(access.strides.begin() + static_cast<int64_t>(d)); });
  if (d < static_cast<size_t>(group.row_dims)) --group.row_dims;
  for (auto& value : group.values)
    if (value.op == ScalarOp::kIndex && static_cast<size_t>(value.place) > d) --value.place;
}

bool is_indexed(const Group& group, size_t d) {
  return std::any_of(group.values.begin(), group.values.end(), [&](const Scalar& value) {
    return value.op == ScalarOp::kIndex && static_cast<size_t>(value.place) == d;
  });
}

/// The strides by which the dimensions are ordered: those of the first store of every element, else of the largest
/// load.
const Access* main_access(const Group& group) {
  const Access* best = nullptr;
  int64_t most = 0;
  const auto look = [&](const Access& access) {
    int64_t n = 1;
    for (size_t d = 0; d < group.sizes.size(); ++d)
      if (access.strides[d] != 0) n *= group.sizes[d];
    if (n > most) most = n, best = &access;
  };
  for (const auto& store : group.stores) look(store.access);
  if (most == group.elements() && best) return best;
  for (const auto& access : group.accesses) look(access);
  return best;
}

void sort_dims(Group& group) {
  const auto* main = main_access(group);
  if (!main) return;
  const auto strides = main->strides;
  std::vector<size_t> order(group.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto by_stride = [&](size_t a, size_t b) { return strides[a] > strides[b]; };
  std::stable_sort(order.begin(), order.begin() + group.row_dims, by_stride);
  std::stable_sort(order.begin() + group.row_dims, order.end(), by_stride);
  reorder(group, order);
}

void merge_dims(Group& group) {
  for (size_t d = group.sizes.size(); d-- > 0;)
    if (group.sizes[d] == 1 && !is_indexed(group, d)) erase_dim(group, d);
  for (size_t d = group.sizes.size(); d-- > 1;) {
    if (static_cast<int>(d) == group.row_dims) continue;  // d-1 is of rows, d of columns
    if (is_indexed(group, d) || is_indexed(group, d - 1)) continue;
    bool alike = true;
    each_access(group, [&](const Access& access) {
      alike = alike && access.strides[d - 1] == access.strides[d] * group.sizes[d];
    });
    if (!alike) continue;
    group.sizes[d - 1] *= group.sizes[d];
    each_access(group, [&](Access& access) { access.strides[d - 1] = access.strides[d]; });
    erase_dim(group, d);
  }
}

}  // namespace

void simplify(Group& group, bool keep_roundings) {
  keep_needed(group, keep_roundings);
  sort_dims(group);
  merge_dims(group);
  keep_needed(group, keep_roundings);
}

void split_dim(Group& group, int dim, int64_t inner) {
  const auto d = static_cast<size_t>(dim);
  const auto at = static_cast<int64_t>(d) + 1;
  const auto size = group.sizes[d];
  group.sizes[d] = size / inner;
  group.sizes.insert(group.sizes.begin() + at, inner);
  each_access(group, [&](Access& access) {
    access.strides.insert(access.strides.begin() + at, access.strides[d]);
    access.strides[d] *= inner;
  });
  if (dim < group.row_dims) ++group.row_dims;
  std::vector<Scalar> old = std::move(group.values);
  group.values.clear();
  std::vector<int> to(old.size());
  for (size_t i = 0; i < old.size(); ++i) {
    auto value = old[i];
    for (int& arg : value.args)
      if (arg >= 0) arg = to[static_cast<size_t>(arg)];
    if (value.op == ScalarOp::kIndex && value.place == dim) {
      const int outer = group.op(ScalarOp::kMul, Number::kInt, group.index(dim), group.whole(inner));
      to[i] = group.op(ScalarOp::kAdd, Number::kInt, outer, group.index(dim + 1));
      continue;
    }
    if (value.op == ScalarOp::kIndex && value.place > dim) ++value.place;
    to[i] = static_cast<int>(group.values.size());
    group.values.push_back(value);
  }
  for (auto& store : group.stores) store.value = to[static_cast<size_t>(store.value)];
}

}  // namespace levin::compile
