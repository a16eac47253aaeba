#include "levin/compile/group.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "levin/core/error.h"

namespace levin::compile {
namespace {

struct OpRow {
  std::string_view name;
  int arguments;
};

constexpr OpRow kOpRows[] = {
#define LEVIN_OP_ROW(name, word, arguments) {word, arguments},
    LEVIN_SCALAR_OPS(LEVIN_OP_ROW)
#undef LEVIN_OP_ROW
};

const OpRow& op_row(ScalarOp op) {
  return kOpRows[static_cast<size_t>(op)];
}

std::string_view number_name(Number number) {
  switch (number) {
    case Number::kFloat:
      return "float";
    case Number::kDouble:
      return "double";
    case Number::kInt:
      return "int";
    case Number::kBool:
      return "bool";
  }
  return "";
}

int64_t product(const std::vector<int64_t>& sizes, size_t from, size_t to) {
  int64_t n = 1;
  for (size_t d = from; d < to; ++d) n *= sizes[d];
  return n;
}

void print_access(std::ostream& out, const Access& access) {
  out << "t" << access.tensor << ":" << c10::toString(access.dtype) << "[" << access.offset;
  for (const auto stride : access.strides) out << "," << stride;
  out << "]";
}

bool has_level(const Group& group, const Access& access, size_t from, size_t to) {
  for (size_t d = from; d < to; ++d)
    if (access.strides[d] != 0 && group.sizes[d] != 1) return true;
  return false;
}

}  // namespace

Number number_of(at::ScalarType dtype) {
  if (dtype == at::kBool) return Number::kBool;
  if (dtype == at::kDouble) return Number::kDouble;
  if (c10::isFloatingType(dtype)) return Number::kFloat;
  return Number::kInt;
}

bool is_group_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

std::string_view name_of(ScalarOp op) {
  return op_row(op).name;
}

int arguments_of(ScalarOp op) {
  return op_row(op).arguments;
}

bool is_reduction(ScalarOp op) {
  return op >= ScalarOp::kRowSum;
}

int64_t Group::rows() const {
  return product(sizes, 0, static_cast<size_t>(row_dims));
}

int64_t Group::columns() const {
  return product(sizes, static_cast<size_t>(row_dims), sizes.size());
}

int Group::tensors() const {
  int n = 0;
  for (const auto& access : accesses) n = std::max(n, access.tensor + 1);
  for (const auto& store : stores) n = std::max(n, store.access.tensor + 1);
  return n;
}

bool Group::is_over(const GroupStore& store) const {
  const auto memory = [&](int tensor) { return memories.empty() ? tensor : memories[static_cast<size_t>(tensor)]; };
  return std::any_of(accesses.begin(), accesses.end(),
                     [&](const Access& access) { return memory(access.tensor) == memory(store.access.tensor); });
}

int64_t Group::least_bytes() const {
  int64_t bytes = 0;
  const auto add_access = [&](const Access& access) {
    int64_t n = 1;
    for (size_t d = 0; d < sizes.size(); ++d)
      if (access.strides[d] != 0) n *= sizes[d];
    bytes += n * static_cast<int64_t>(c10::elementSize(access.dtype));
  };
  for (const auto& access : accesses) add_access(access);
  for (const auto& store : stores) add_access(store.access);
  return bytes;
}

int Group::add(const Scalar& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found != values.end()) return static_cast<int>(found - values.begin());
  values.push_back(value);
  return static_cast<int>(values.size()) - 1;
}

int Group::load(const Access& access, int index, int64_t gather_stride, int64_t gather_size, int guard) {
  auto found = std::find(accesses.begin(), accesses.end(), access);
  if (found == accesses.end()) found = accesses.insert(found, access);
  Scalar value{.op = ScalarOp::kLoad, .number = number_of(access.dtype), .args = {index, guard, -1}};
  value.place = static_cast<int>(found - accesses.begin());
  value.dtype = access.dtype;
  value.gather_stride = gather_stride, value.gather_size = gather_size;
  return add(value);
}

int Group::real(double x, Number number) {
  Scalar value{.op = ScalarOp::kNumber, .number = number};
  if (number == Number::kFloat || number == Number::kDouble)
    value.real = number == Number::kFloat ? static_cast<double>(static_cast<float>(x)) : x;
  else
    value.whole = number == Number::kBool ? x != 0 : static_cast<int64_t>(x);
  if (x != x) {  // equal to no other: found by hand
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i].op == ScalarOp::kNumber && values[i].number == number && values[i].real != values[i].real)
        return static_cast<int>(i);
    values.push_back(value);
    return static_cast<int>(values.size()) - 1;
  }
  for (size_t i = 0; i < values.size(); ++i)  // -0 == 0
    if (values[i] == value && std::signbit(values[i].real) == std::signbit(value.real)) return static_cast<int>(i);
  values.push_back(value);
  return static_cast<int>(values.size()) - 1;
}

int Group::whole(int64_t x, Number number) {
  return add({.op = ScalarOp::kNumber, .number = number, .whole = x});
}

int Group::index(int dim) {
  return add({.op = ScalarOp::kIndex, .number = Number::kInt, .place = dim});
}

int Group::op(ScalarOp op, Number number, int a, int b, int c) {
  return add({.op = op, .number = number, .args = {a, b, c}});
}

int Group::cast(int value, at::ScalarType dtype, bool implicit) {
  const auto& from = values[static_cast<size_t>(value)];
  const bool same = from.number == number_of(dtype);
  // What is exact already: the full dtypes of a class, and what has been loaded or cast so.
  if (same && (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong || dtype == at::kBool)) return value;
  if (same && (from.op == ScalarOp::kLoad || from.op == ScalarOp::kCast) && from.dtype == dtype) return value;
  Scalar to{.op = ScalarOp::kCast, .number = number_of(dtype), .args = {value, -1, -1}};
  to.dtype = dtype, to.implicit = implicit;
  return add(to);
}

void Group::store(const Access& access, int value) {
  stores.push_back({access, value});
}

std::vector<Level> Group::levels() const {
  std::vector<Level> levels(values.size(), kUniform);
  const auto split = static_cast<size_t>(row_dims);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& value = values[i];
    int level = kUniform;
    for (const int arg : value.args)
      if (arg >= 0) level |= levels[static_cast<size_t>(arg)];
    if (value.op == ScalarOp::kLoad) {
      const auto& access = accesses[static_cast<size_t>(value.place)];
      if (has_level(*this, access, 0, split)) level |= kRowLevel;
      if (has_level(*this, access, split, sizes.size())) level |= kColumnLevel;
    } else if (value.op == ScalarOp::kIndex) {
      if (sizes[static_cast<size_t>(value.place)] != 1) level |= value.place < row_dims ? kRowLevel : kColumnLevel;
    } else if (value.op == ScalarOp::kColumnSum) {
      level &= kColumnLevel;
    } else if (is_reduction(value.op)) {
      level &= kRowLevel;
    }
    levels[i] = static_cast<Level>(level);
  }
  return levels;
}

std::vector<int> Group::phases() const {
  std::vector<int> phases(values.size(), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    for (const int arg : values[i].args)
      if (arg >= 0) phases[i] = std::max(phases[i], phases[static_cast<size_t>(arg)]);
    if (is_reduction(values[i].op)) ++phases[i];
  }
  return phases;
}

std::vector<bool> Group::after_column_sums() const {
  std::vector<bool> after(values.size(), false);
  for (size_t i = 0; i < values.size(); ++i) {
    after[i] = values[i].op == ScalarOp::kColumnSum;
    for (const int arg : values[i].args)
      if (arg >= 0 && after[static_cast<size_t>(arg)]) after[i] = true;
  }
  return after;
}

void Group::check() const {
  const auto fail_if = [&](bool wrong, const auto&... what) { LEVIN_CHECK(!wrong, "[compile] group ", what...); };
  fail_if(row_dims < 0 || static_cast<size_t>(row_dims) > sizes.size(), "has ", row_dims, " dimensions of rows");
  const auto check_access = [&](const Access& access) {
    fail_if(access.strides.size() != sizes.size(), "has an access of ", access.strides.size(), " strides");
    fail_if(!is_group_dtype(access.dtype), "has a tensor of ", c10::toString(access.dtype));
    for (const auto stride : access.strides) fail_if(stride < 0, "has a negative stride");
  };
  for (const auto& access : accesses) check_access(access);
  const auto level = levels();
  const auto after = after_column_sums();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& value = values[i];
    int count = 0;
    for (const int arg : value.args) {
      fail_if(arg >= static_cast<int>(i), "value ", i, " reads a later one");
      count += arg >= 0;
    }
    if (value.op == ScalarOp::kLoad) {
      fail_if(value.place < 0 || static_cast<size_t>(value.place) >= accesses.size(), "value ", i, " loads nothing");
    } else {
      fail_if(count != arguments_of(value.op), "value ", i, " (", name_of(value.op), ") has ", count, " arguments");
    }
    if (value.op == ScalarOp::kIndex)
      fail_if(value.place < 0 || static_cast<size_t>(value.place) >= sizes.size(), "value ", i, " has no dimension");
    if (after[i] && value.op != ScalarOp::kColumnSum) {
      for (const int arg : value.args) {
        const auto of = arg >= 0 ? static_cast<size_t>(arg) : 0;
        fail_if(arg >= 0 && (level[of] & kRowLevel), "value ", i, " mixes sums of columns with rows");
      }
      fail_if(is_reduction(value.op), "value ", i, " reduces sums of columns");
    }
  }
  for (const auto& store : stores) {
    check_access(store.access);
    fail_if(store.value < 0 || static_cast<size_t>(store.value) >= values.size(), "stores no value");
    const auto& value = values[static_cast<size_t>(store.value)];
    fail_if(value.number != number_of(store.access.dtype), "stores ", number_name(value.number), " as ",
            c10::toString(store.access.dtype));
  }
}

std::string Group::print() const {
  std::ostringstream out;
  out.precision(17);
  out << "rows [";
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (d == static_cast<size_t>(row_dims))
      out << "] columns [";
    else if (d)
      out << ",";
    out << sizes[d];
  }
  if (sizes.size() == static_cast<size_t>(row_dims)) out << "] columns [";
  out << "]\n";
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& value = values[i];
    out << "%" << i << " = " << name_of(value.op) << ":" << number_name(value.number);
    if (value.op == ScalarOp::kLoad) out << " ", print_access(out, accesses[static_cast<size_t>(value.place)]);
    if (value.op == ScalarOp::kIndex) out << " d" << value.place;
    if (value.op == ScalarOp::kCast) out << " " << c10::toString(value.dtype) << (value.implicit ? "?" : "");
    if (value.op == ScalarOp::kNumber) {
      if (value.number == Number::kFloat || value.number == Number::kDouble)
        out << " " << value.real;
      else
        out << " " << value.whole;
    }
    for (const int arg : value.args)
      if (arg >= 0)
        out << " %" << arg;
      else if (value.op == ScalarOp::kLoad)
        out << " -";
    if (value.gather_stride || value.gather_size)
      out << " gather " << value.gather_stride << " of " << value.gather_size;
    out << "\n";
  }
  for (const auto& store : stores) {
    print_access(out, store.access);
    out << (is_over(store) ? " := %" : " = %") << store.value << "\n";
  }
  return out.str();
}

}  // namespace levin::compile
