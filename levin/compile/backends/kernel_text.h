#pragma once

#include <functional>
#include <string>
#include <vector>

#include "levin/compile/group.h"

namespace levin::compile::detail {

/// A constant, or what a scalar operation is in CUDA C++, of texts of its arguments.
std::string constant_text(const Scalar& value);
std::string operation_text(const Scalar& value, Number operand, const std::string& a, const std::string& b,
                           const std::string& c);
/// "float", "i64"; "BF16", "I32"; "Sum", "Max".
std::string_view number_text(Number number);
std::string_view dtype_text(at::ScalarType dtype);
std::string_view reducer_text(ScalarOp op);
std::string start_text(ScalarOp op, Number number);

/// Writes the values of a group as statements, `vector` neighbours along one dimension at once. Coordinates are
/// variables c0, c1, ..., that of the vector's dimension being the one of its first element; values are v0, v1, ...
class GroupText {
 public:
  /// `vector_dim` is -1 where there is none. `by_rows`: the vector lies along rows, so each row value is an array.
  GroupText(const Group& group, int vector, int vector_dim, bool aligned);

  const std::vector<Level>& levels() const { return levels_; }
  const std::vector<int>& phases() const { return phases_; }
  bool varies(int value) const { return varies_[static_cast<size_t>(value)]; }
  /// Whole vectors are read or written; else numbers one by one.
  bool is_vector(const Access& access) const;
  /// A load whose vectors may be kept in registers: r5[k].
  bool is_cacheable(int value) const;
  /// A value of rows that differs within the vector: v5[v].
  bool is_array(int value) const;
  std::string name(int value) const;
  std::string place(const Access& access) const;
  /// "int" where every place is below 2^31.
  std::string_view index_type() const { return wide_ ? "i64" : "int"; }
  /// Statements that make coordinates of dimensions [from, to) out of the linear `index`, in vectors.
  std::string coordinates(int from, int to, const std::string& index) const;
  /// Declarations and loads of what `k`-th vectors of cacheable loads are.
  std::string cached_load(int value, const std::string& k) const;

  /// Statements for `values` (in order), then `each` within the loop over the vector, then `after`. Cacheable loads are
  /// r5[k] where `k` is not empty.
  std::string block(const std::vector<int>& values, const std::string& k, const std::string& each,
                    const std::string& before = {}, const std::string& after = {}) const;

  /// Values that `sinks` need and for which `is_there` is false, in order.
  std::vector<int> needed(const std::vector<int>& sinks, const std::function<bool(int)>& is_there) const;

 private:
  std::string expression(int value) const;
  std::string load_place(int value, bool each) const;

  const Group& group_;
  int vector_, vector_dim_;
  bool aligned_, wide_ = false;
  std::vector<Level> levels_;
  std::vector<int> phases_;
  std::vector<bool> varies_;
};

}  // namespace levin::compile::detail
