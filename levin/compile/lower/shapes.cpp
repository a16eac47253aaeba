// Operators whose elements come from another place: concatenation, padding by slices, triangles, embedding.
#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;

int within(Lower& l, int coordinate, int64_t from, int64_t to, int64_t size) {
  int inside = -1;
  if (from > 0) inside = l.group.op(Op::kGe, Number::kBool, coordinate, l.group.whole(from));
  if (to < size) {
    const int below = l.group.op(Op::kLt, Number::kBool, coordinate, l.group.whole(to));
    inside = inside < 0 ? below : l.group.op(Op::kAnd, Number::kBool, inside, below);
  }
  return inside;
}

/// A tensor whose place `from` along `dim` is the first; 0 or `otherwise` outside.
int piece(Lower& l, const View& of, size_t dim, int64_t from, int& inside) {
  auto wide = of;
  wide.sizes[dim] = l.space.sizes[dim];
  // One row that is seen everywhere would have no stride.
  if (of.sizes[dim] == 1 && wide.sizes[dim] != 1) wide.strides[dim] = 0;
  inside = within(l, l.coordinate(dim), from, from + of.sizes[dim], l.space.sizes[dim]);
  const int64_t shift = wide.strides[dim] * -from;
  if (wide.strides[dim] == 0 && wide.sizes[dim] != 1) wide.sizes[dim] = 1;
  return l.element(wide, shift, -1, 0, 0, inside);
}

void cat(Lower& l) {
  const auto* list = std::get_if<std::vector<std::optional<View>>>(&l.node.args[0]);
  if (!list || l.space.sizes.empty()) throw Unfit{};
  const auto n = static_cast<int64_t>(l.space.sizes.size());
  auto dim = l.whole("dim", 0);
  if (dim < 0) dim += n;
  int64_t from = 0;
  int all = -1;
  for (const auto& view : *list) {
    if (!view || view->dim() != n) throw Unfit{};
    int inside = -1;
    const int x = l.as(piece(l, *view, static_cast<size_t>(dim), from, inside), l.number);
    all = all < 0 ? x : inside < 0 ? x : l.where(inside, x, all);
    from += view->sizes[static_cast<size_t>(dim)];
  }
  l.result(all);
}

/// Zeros, with the gradient where the slice was.
void slice_backward(Lower& l) {
  if (l.whole("step", 1) != 1) throw Unfit{};
  auto dim = l.whole("dim", 0);
  const auto n = static_cast<int64_t>(l.space.sizes.size());
  if (dim < 0) dim += n;
  auto start = l.whole("start", 0);
  if (start < 0) start += l.space.sizes[static_cast<size_t>(dim)];
  int inside = -1;
  l.result(
      l.as(piece(l, l.view("grad_output"), static_cast<size_t>(dim), std::max<int64_t>(start, 0), inside), l.number));
}

template <Op kOp>
void triangle(Lower& l) {
  const auto n = l.space.sizes.size();
  if (n < 2) throw Unfit{};
  const int way = l.group.op(Op::kSub, Number::kInt, l.coordinate(n - 1), l.coordinate(n - 2));
  const int inside = l.group.op(kOp, Number::kBool, way, l.group.whole(l.whole("diagonal", 0)));
  const int zero = l.number == Number::kInt || l.number == Number::kBool ? l.group.whole(0, l.number) : l.constant(0);
  l.result(l.where(inside, l.operand("self"), zero));
}

void embedding(Lower& l) {
  const auto& weight = l.view("weight");
  auto indices = l.view("indices");
  indices.sizes.push_back(1), indices.strides.push_back(0);
  const int index = l.element(l.aligned(indices));
  View row = weight;  // which one is the index
  row.sizes = {weight.sizes[1]}, row.strides = {weight.strides[1]};
  l.result(l.as(l.element(l.aligned(row), 0, index, weight.strides[0], weight.sizes[0]), l.number));
}

}  // namespace

std::vector<LowerRow> shape_rows() {
  return {{"cat", cat},
          {"slice_backward", slice_backward},
          {"tril", triangle<Op::kLe>},
          {"triu", triangle<Op::kGe>},
          {"embedding", embedding}};
}

}  // namespace levin::compile
