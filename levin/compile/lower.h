#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "levin/compile/draft.h"
#include "levin/compile/graph.h"
#include "levin/compile/group.h"

namespace levin::compile {

/// The operator does not fit into this group, or is not lowered with these arguments.
struct Unfit {};

/// What an operator computes on: sizes, and which dimensions it reduces.
struct LowerSpace {
  std::vector<int64_t> sizes;
  /// Empty: none.
  std::vector<bool> reduced = {};
  /// How the dimensions lie in memory, where they are not those of the first result or argument.
  std::vector<int64_t> strides = {};
};

/// One operator on its way into a group: its arguments as values of one element, its results.
class Lower {
 public:
  Lower(const Node& node, Draft& draft, const LowerSpace& space,
        std::vector<std::vector<std::pair<int, int64_t>>> where, bool recomputed);

  const Node& node;
  const LowerSpace& space;
  Group& group;
  /// The class that the operator computes in: that of its result; for comparisons that of its arguments.
  Number number;

  // Arguments, by name of the schema.
  bool has(std::string_view name) const;
  const View& view(std::string_view name) const;
  /// The tensor's element, in its own class.
  int tensor(std::string_view name);
  /// A tensor or a number, in `number`.
  int operand(std::string_view name);
  int operand(std::string_view name, Number to);
  double real(std::string_view name, double otherwise) const;
  int64_t whole(std::string_view name, int64_t otherwise) const;
  bool flag(std::string_view name, bool otherwise) const;

  /// The element of a tensor seen with one size per dimension of the space. A `shift` moves its offset; `index` adds
  /// index * stride.
  int element(const View& view, int64_t shift = 0, int index = -1, int64_t gather_stride = 0, int64_t gather_size = 0,
              int guard = -1);
  /// The view with the dimensions of the space, sizes of 1 before its own.
  View aligned(const View& view) const;
  /// The view with dimensions of size 1 where the space is reduced.
  View kept(const View& view) const;
  int coordinate(size_t dim);
  int as(int value, Number to);
  Number number_at(int value) const { return group.values[static_cast<size_t>(value)].number; }

  // Operations in `number`.
  int constant(double x) { return group.real(x, number); }
  int op(ScalarOp op, int a, int b = -1, int c = -1) { return group.op(op, number, a, b, c); }
  int compare(ScalarOp op, int a, int b) { return group.op(op, Number::kBool, a, b); }
  int add(int a, int b) { return op(ScalarOp::kAdd, a, b); }
  int sub(int a, int b) { return op(ScalarOp::kSub, a, b); }
  int mul(int a, int b) { return op(ScalarOp::kMul, a, b); }
  int div(int a, int b) { return op(ScalarOp::kDiv, a, b); }
  int where(int condition, int a, int b) { return op(ScalarOp::kWhere, condition, a, b); }
  /// Over the dimensions that the space reduces.
  int reduce(ScalarOp op, int value);
  /// Over those that it keeps.
  int reduce_kept(int value);
  int64_t reduced_count() const;

  /// The k-th result, seen along the space. `exact` for casts that the user asked for.
  void result(int value, size_t k = 0, bool exact = false);
  void result_at(const View& view, int value, bool exact = false);

 private:
  Access access_of(const View& view, int64_t shift) const;
  const Argument* argument(std::string_view name) const;

  Draft& draft_;
  std::vector<std::vector<std::pair<int, int64_t>>> where_;
  bool recomputed_;
};

/// How one operator is lowered. `name` is without namespace, overload and the _ of in-place ones.
struct LowerRow {
  std::string_view name;
  void (*lower)(Lower& lower);
  /// Null: elementwise, over the sizes of the first result. No value: not with these arguments.
  std::optional<LowerSpace> (*space)(const Node& node) = nullptr;
};

// One table a file.
std::vector<LowerRow> pointwise_rows();
std::vector<LowerRow> activation_rows();
std::vector<LowerRow> reduction_rows();
std::vector<LowerRow> norm_rows();
std::vector<LowerRow> loss_rows();
std::vector<LowerRow> shape_rows();

/// Null where there is none.
const LowerRow* find_lower_row(const Node& node);

}  // namespace levin::compile
