#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

/// A group: the scalar operations that one kernel makes for every element of one iteration space. Nothing here knows of
/// devices or of the graph; backends/ turn a group into loops of the CPU or a source for CUDA.
namespace levin::compile {

/// Class of numbers that an operation computes in. Float32 and 16-bit floats compute in kFloat, integers in kInt (64
/// bits).
enum class Number : uint8_t { kFloat, kDouble, kInt, kBool };

Number number_of(at::ScalarType dtype);
/// Float, double, 16-bit floats, bool, integers: what tensors of a group may have.
bool is_group_dtype(at::ScalarType dtype);

/// Operations, one row each: name, number of arguments. Their functions are in group_interpret.cpp (reference),
/// backends/cpu_loops.cpp and backends/kernel_text.cpp. The compiler says where a row is missing.
/// Reductions make a value of each row (kRow...) or of each column (kColumn...).
#define LEVIN_SCALAR_OPS(row)                                                                                         \
  row(kLoad, "load", 0) row(kNumber, "number", 0) row(kIndex, "index", 0) row(kCast, "cast", 1) row(kAdd, "add", 2)   \
      row(kSub, "sub", 2) row(kMul, "mul", 2) row(kDiv, "div", 2) row(kFloorDiv, "floor_div", 2)                      \
          row(kTruncDiv, "trunc_div", 2) row(kRemainder, "remainder", 2) row(kFmod, "fmod", 2) row(kPow, "pow", 2)    \
              row(kMin, "min", 2) row(kMax, "max", 2) row(kAtan2, "atan2", 2) row(kNeg, "neg", 1) row(kAbs, "abs", 1) \
                  row(kSign, "sign", 1) row(kExp, "exp", 1) row(kExpm1, "expm1", 1) row(kExp2, "exp2", 1)             \
                      row(kLog, "log", 1) row(kLog1p, "log1p", 1) row(kLog2, "log2", 1) row(kLog10, "log10", 1) row(  \
                          kSqrt, "sqrt", 1) row(kRsqrt, "rsqrt", 1) row(kRecip, "recip", 1) row(kSin, "sin", 1)       \
                          row(kCos, "cos", 1) row(kTan, "tan", 1) row(kTanh, "tanh", 1) row(kSigmoid, "sigmoid", 1)   \
                              row(kErf, "erf", 1) row(kAtan, "atan", 1) row(kFloor, "floor", 1) row(kCeil, "ceil", 1) \
                                  row(kRound, "round", 1) row(kTrunc, "trunc", 1) row(kIsNan, "isnan", 1)             \
                                      row(kNot, "not", 1) row(kAnd, "and", 2) row(kOr, "or", 2) row(kXor, "xor", 2)   \
                                          row(kEq, "eq", 2) row(kNe, "ne", 2) row(kLt, "lt", 2) row(kLe, "le", 2)     \
                                              row(kGt, "gt", 2) row(kGe, "ge", 2) row(kWhere, "where", 3)             \
                                                  row(kRowSum, "row_sum", 1) row(kRowMax, "row_max", 1)               \
                                                      row(kRowMin, "row_min", 1) row(kRowProd, "row_prod", 1)         \
                                                          row(kColumnSum, "column_sum", 1)

enum class ScalarOp : uint8_t {
#define LEVIN_SCALAR_OP_NAME(name, word, arguments) name,
  LEVIN_SCALAR_OPS(LEVIN_SCALAR_OP_NAME)
#undef LEVIN_SCALAR_OP_NAME
};

std::string_view name_of(ScalarOp op);
int arguments_of(ScalarOp op);
bool is_reduction(ScalarOp op);

/// How the elements of the iteration space lie in one tensor, in elements from the pointer given at run time.
struct Access {
  /// The place of the tensor's pointer in the list given to a kernel. Several accesses may read one pointer.
  int tensor = 0;
  at::ScalarType dtype = at::kFloat;
  /// One stride per dimension of the space; 0 broadcasts.
  std::vector<int64_t> strides;
  int64_t offset = 0;

  bool operator==(const Access&) const = default;
};

/// A number of each element (or row, or column): an operation on earlier ones.
struct Scalar {
  ScalarOp op = ScalarOp::kNumber;
  /// What it computes in, and what it results in.
  Number number = Number::kFloat;
  /// Indices of earlier values; -1 for none. kLoad may have two: a kInt index that adds args[0] * gather_stride to the
  /// place (wrapped where negative, NaN or 0 where outside of gather_size), and a kBool guard, without which it is 0
  /// and nothing is read.
  std::array<int, 3> args{-1, -1, -1};
  /// kLoad: index into accesses. kIndex: the dimension whose coordinate it is.
  int place = -1;
  /// kCast: the dtype whose rounding and range the result has.
  at::ScalarType dtype = at::kFloat;
  /// kCast of what eager rounds only because it stores it: backends may leave it out.
  bool implicit = false;
  double real = 0;    // kNumber of kFloat and kDouble
  int64_t whole = 0;  // kNumber of kInt and kBool
  int64_t gather_stride = 0, gather_size = 0;

  bool operator==(const Scalar&) const = default;
};

/// A result. A value of rows is stored once a row (its access has stride 0 over columns), one of columns once a column.
struct GroupStore {
  Access access;
  int value = 0;
};

/// Which dimensions a value differs along.
enum Level : uint8_t { kUniform = 0, kRowLevel = 1, kColumnLevel = 2, kElement = 3 };

struct Group {
  /// The iteration space: `row_dims` dimensions of rows, then those of columns, which row reductions reduce.
  /// Without reductions all dimensions are rows.
  std::vector<int64_t> sizes;
  int row_dims = 0;
  std::vector<Access> accesses;
  std::vector<Scalar> values;
  std::vector<GroupStore> stores;
  /// For each tensor a number of its memory: what is read and what is written may be one (in place). Empty: all differ.
  std::vector<int> memories;
  /// Names of the operators that it was made of, for reports and kernel names.
  std::vector<std::string> made_of;

  int64_t rows() const;
  int64_t columns() const;
  int64_t elements() const { return rows() * columns(); }
  /// Number of pointers that a kernel is given.
  int tensors() const;
  /// Some store writes over what is read there.
  bool is_over(const GroupStore& store) const;
  /// Bytes that must be read and written at least once: each access without its broadcast dimensions.
  int64_t least_bytes() const;

  /// Appends a value, or returns the equal one that is there.
  int add(const Scalar& value);
  int load(const Access& access, int index = -1, int64_t gather_stride = 0, int64_t gather_size = 0, int guard = -1);
  int real(double x, Number number = Number::kFloat);
  int whole(int64_t x, Number number = Number::kInt);
  int index(int dim);
  int op(ScalarOp op, Number number, int a, int b = -1, int c = -1);
  /// Returns the value itself where it has that dtype already.
  int cast(int value, at::ScalarType dtype, bool implicit = false);
  void store(const Access& access, int value);

  /// Level of each value, and its phase: how many reductions stand one behind the other on the longest way to it.
  std::vector<Level> levels() const;
  std::vector<int> phases() const;
  /// Values made of sums of columns. They are of columns alone.
  std::vector<bool> after_column_sums() const;

  /// Throws an Error that names what is wrong.
  void check() const;
  /// Readable text, one line a value; equal groups have equal text.
  std::string print() const;
};

/// Drops values that no store needs, implicit casts between operations if `keep_roundings` is false, and merges
/// neighbouring dimensions that every access steps through alike.
void simplify(Group& group, bool keep_roundings = false);

/// Makes two dimensions of one: of size / inner and of inner, which must divide it.
void split_dim(Group& group, int dim, int64_t inner);

/// Runs the group in plain loops over host memory: the reference of the backends. Slow.
void interpret(const Group& group, std::span<void* const> tensors);

/// What a backend makes of a group. Safe to call from one thread at a time.
class GroupKernel {
 public:
  virtual ~GroupKernel() = default;
  /// One pointer per tensor of the group, on the current stream. Does not wait.
  virtual void run(std::span<void* const> tensors) = 0;
};

}  // namespace levin::compile
