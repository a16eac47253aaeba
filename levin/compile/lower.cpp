#include "levin/compile/lower.h"

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/Scalar.h>

namespace levin::compile {
namespace {

c10::Scalar scalar_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined() || tensor.dim() != 0 || !tensor.is_cpu()) throw Unfit{};
    return at::_local_scalar_dense(tensor);
  }
  if (!value.isScalar() && !value.isDouble() && !value.isInt() && !value.isBool()) throw Unfit{};
  return value.toScalar();
}

/// The dtype in which torch computes, of tensors with dimensions, without, and of numbers.
class CommonDtype {
 public:
  void tensor(const View& view) { join(view.dim() > 0 ? dims_ : zero_, view.dtype); }
  void number(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) join(numbers_, value.toTensor().scalar_type());
      return;
    }
    if (value.isDouble())
      join(numbers_, at::kFloat);
    else if (value.isInt())
      join(numbers_, at::kLong);
    else if (value.isBool())
      join(numbers_, at::kBool);
  }
  std::optional<at::ScalarType> get() const {
    auto all = combine(zero_, numbers_);
    return combine(dims_, all);
  }

 private:
  static void join(std::optional<at::ScalarType>& to, at::ScalarType dtype) {
    to = to ? c10::promoteTypes(*to, dtype) : dtype;
  }
  static std::optional<at::ScalarType> combine(std::optional<at::ScalarType> higher,
                                               std::optional<at::ScalarType> lower) {
    if (!higher) return lower;
    if (!lower) return higher;
    if (c10::isFloatingType(*higher)) return higher;
    if (*higher == at::kBool || c10::isFloatingType(*lower)) return c10::promoteTypes(*higher, *lower);
    return higher;
  }
  std::optional<at::ScalarType> dims_, zero_, numbers_;
};

std::string base_name(const Node& node) {
  auto name = node.name();
  if (name.rfind("aten::", 0) != 0) return {};
  name = name.substr(6, name.find('.') == std::string::npos ? std::string::npos : name.find('.') - 6);
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  return name;
}

}  // namespace

const LowerRow* find_lower_row(const Node& node) {
  static const auto rows = [] {
    std::map<std::string, LowerRow, std::less<>> all;
    for (const auto& table :
         {pointwise_rows(), activation_rows(), reduction_rows(), norm_rows(), loss_rows(), shape_rows()})
      for (const auto& row : table) all.emplace(row.name, row);
    return all;
  }();
  if (!node.op || node.random || node.barrier || node.writes.empty()) return nullptr;
  const auto found = rows.find(base_name(node));
  return found == rows.end() ? nullptr : &found->second;
}

Lower::Lower(const Node& of, Draft& draft, const LowerSpace& of_space,
             std::vector<std::vector<std::pair<int, int64_t>>> where, bool recomputed)
    : node(of),
      space(of_space),
      group(draft.group_),
      number(number_of(of.writes[0].dtype)),
      draft_(draft),
      where_(std::move(where)),
      recomputed_(recomputed) {
  if (of.writes[0].dtype != at::kBool) return;
  CommonDtype common;
  for (const auto& arg : of.args) {
    if (const auto* view = std::get_if<View>(&arg)) {
      // The mask of `where` is no number.
      common.tensor(*view);
    } else if (const auto* value = std::get_if<c10::IValue>(&arg)) {
      common.number(*value);
    }
  }
  if (const auto dtype = common.get()) number = number_of(*dtype);
}

const Argument* Lower::argument(std::string_view name) const {
  const auto& arguments = node.op->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < node.args.size(); ++i)
    if (arguments[i].name() == name) return &node.args[i];
  return nullptr;
}

bool Lower::has(std::string_view name) const {
  const auto* arg = argument(name);
  if (!arg) return false;
  const auto* value = std::get_if<c10::IValue>(arg);
  return !value || (!value->isNone() && (!value->isTensor() || value->toTensor().defined()));
}

const View& Lower::view(std::string_view name) const {
  const auto* arg = argument(name);
  const auto* found = arg ? std::get_if<View>(arg) : nullptr;
  if (!found) throw Unfit{};
  return *found;
}

int Lower::tensor(std::string_view name) {
  return element(aligned(view(name)));
}

int Lower::as(int value, Number to) {
  const auto from = number_at(value);
  if (from == to) return value;
  switch (to) {
    case Number::kFloat:
      return group.cast(value, at::kFloat);
    case Number::kDouble:
      return group.cast(value, at::kDouble);
    case Number::kInt:
      return group.cast(value, at::kLong);
    // clang-format off
    case Number::kBool:
      // clang-format on
      return group.cast(value, at::kBool);
  }
  return {};
}

int Lower::operand(std::string_view name) {
  return operand(name, number);
}

int Lower::operand(std::string_view name, Number to) {
  const auto* arg = argument(name);
  if (!arg) throw Unfit{};
  if (const auto* of = std::get_if<View>(arg)) {
    // A wider class than that of the result: torch computes in the wider one.
    if (to == Number::kFloat && of->dtype == at::kDouble && of->dim() > 0) throw Unfit{};
    if (to == Number::kInt && c10::isFloatingType(of->dtype)) throw Unfit{};
    return as(element(aligned(*of)), to);
  }
  const auto* value = std::get_if<c10::IValue>(arg);
  if (!value || value->isNone()) throw Unfit{};
  const auto scalar = scalar_of(*value);
  if (to == Number::kInt || to == Number::kBool) {
    if (scalar.isFloatingPoint()) throw Unfit{};
    return group.whole(to == Number::kBool ? scalar.toLong() != 0 : scalar.toLong(), to);
  }
  return group.real(scalar.toDouble(), to);
}

double Lower::real(std::string_view name, double otherwise) const {
  const auto* arg = argument(name);
  const auto* value = arg ? std::get_if<c10::IValue>(arg) : nullptr;
  return !value || value->isNone() ? otherwise : scalar_of(*value).toDouble();
}

int64_t Lower::whole(std::string_view name, int64_t otherwise) const {
  const auto* arg = argument(name);
  const auto* value = arg ? std::get_if<c10::IValue>(arg) : nullptr;
  return !value || value->isNone() ? otherwise : scalar_of(*value).toLong();
}

bool Lower::flag(std::string_view name, bool otherwise) const {
  return whole(name, otherwise) != 0;
}

View Lower::aligned(const View& of) const {
  auto to = of;
  if (to.sizes.size() > space.sizes.size()) throw Unfit{};
  const auto missing = static_cast<std::ptrdiff_t>(space.sizes.size() - to.sizes.size());
  to.sizes.insert(to.sizes.begin(), static_cast<size_t>(missing), 1);
  to.strides.insert(to.strides.begin(), static_cast<size_t>(missing), 0);
  return to;
}

View Lower::kept(const View& of) const {
  auto to = of;
  if (to.sizes.size() == space.sizes.size()) return to;
  to.sizes.clear(), to.strides.clear();
  size_t next = 0;
  for (size_t d = 0; d < space.sizes.size(); ++d) {
    if (space.reduced[d]) {
      to.sizes.push_back(1), to.strides.push_back(0);
    } else {
      if (next >= of.sizes.size()) throw Unfit{};
      to.sizes.push_back(of.sizes[next]), to.strides.push_back(of.strides[next]);
      ++next;
    }
  }
  if (next != of.sizes.size()) throw Unfit{};
  return to;
}

Access Lower::access_of(const View& of, int64_t shift) const {
  Access access{.dtype = of.dtype, .strides = std::vector<int64_t>(group.sizes.size(), 0), .offset = shift};
  for (size_t d = 0; d < of.sizes.size(); ++d) {
    if (of.sizes[d] == 1) continue;
    if (of.sizes[d] != space.sizes[d]) throw Unfit{};
    for (const auto& [dim, step] : where_[d])
      if (group.sizes[static_cast<size_t>(dim)] != 1) access.strides[static_cast<size_t>(dim)] = of.strides[d] * step;
  }
  return access;
}

int Lower::element(const View& of, int64_t shift, int index, int64_t gather_stride, int64_t gather_size, int guard) {
  if (!is_group_dtype(of.dtype)) throw Unfit{};
  auto access = access_of(of, shift);
  for (auto made = draft_.made_.rbegin(); made != draft_.made_.rend(); ++made) {
    if (made->view.storage != of.storage) continue;
    if (made->view.version == of.version && made->view.dtype == of.dtype && made->view.offset == of.offset &&
        made->access.strides == access.strides && shift == 0 && index < 0 && guard < 0)
      return made->value;
    throw Unfit{};
  }
  for (size_t s = 0; s < draft_.loads_.size(); ++s) {
    const auto& slot = draft_.loads_[s];
    if (slot.view.storage != of.storage) continue;
    if (slot.view.version != of.version) throw Unfit{};  // written in between
    if (slot.view.dtype == of.dtype && slot.view.offset == of.offset && slot.access.strides == access.strides &&
        slot.access.offset == access.offset) {
      access.tensor = static_cast<int>(s);
      return group.load(access, index, gather_stride, gather_size, guard);
    }
  }
  access.tensor = static_cast<int>(draft_.loads_.size());
  draft_.loads_.push_back({of, access, false});
  if (index >= 0 || guard >= 0) draft_.loads_.back().view.sizes.clear(), draft_.loads_.back().view.strides.clear();
  return group.load(access, index, gather_stride, gather_size, guard);
}

int Lower::coordinate(size_t dim) {
  int sum = -1;
  for (const auto& [at, step] : where_[dim]) {
    int part = group.index(at);
    if (step != 1) part = group.op(ScalarOp::kMul, Number::kInt, part, group.whole(step));
    sum = sum < 0 ? part : group.op(ScalarOp::kAdd, Number::kInt, sum, part);
  }
  return sum < 0 ? group.whole(0) : sum;
}

int64_t Lower::reduced_count() const {
  int64_t n = 1;
  for (size_t d = 0; d < space.sizes.size(); ++d)
    if (space.reduced[d]) n *= space.sizes[d];
  return n;
}

int Lower::reduce(ScalarOp row_op, int value) {
  std::vector<bool> mask(group.sizes.size(), false);
  for (size_t d = 0; d < space.sizes.size(); ++d)
    if (space.reduced[d])
      for (const auto& [dim, step] : where_[d]) mask[static_cast<size_t>(dim)] = true;
  bool same = true, other = true;
  for (size_t d = 0; d < mask.size(); ++d) {
    if (group.sizes[d] == 1) continue;
    same = same && mask[d] == draft_.reduced_[d];
    other = other && mask[d] != draft_.reduced_[d];
  }
  draft_.has_reduction_ = true;
  const auto of = number_at(value);
  if (same) return group.op(row_op, of, value);
  if (other && row_op == ScalarOp::kRowSum) return group.op(ScalarOp::kColumnSum, of, value);
  throw Unfit{};
}

int Lower::reduce_kept(int value) {
  for (size_t d = 0; d < space.sizes.size(); ++d)
    for (const auto& [dim, step] : where_[d])
      if (group.sizes[static_cast<size_t>(dim)] != 1 && space.reduced[d] != draft_.reduced_[static_cast<size_t>(dim)])
        throw Unfit{};
  draft_.has_reduction_ = true;
  return group.op(ScalarOp::kColumnSum, number_at(value), value);
}

void Lower::result(int value, size_t k, bool exact) {
  if (k >= node.writes.size()) return;
  const auto& of = node.writes[k];
  result_at(of.sizes.size() == space.sizes.size() || space.reduced.empty() ? aligned(of) : kept(of), value, exact);
}

void Lower::result_at(const View& of, int value, bool exact) {
  if (!is_group_dtype(of.dtype)) throw Unfit{};
  const auto access = access_of(of, 0);
  // What is in memory at this place must be this very element to all others of the group.
  const auto same = [&](const View& view, const Access& other) {
    return view.dtype == of.dtype && view.offset == of.offset && other.strides == access.strides && other.offset == 0;
  };
  for (const auto& slot : draft_.loads_)
    if (slot.view.storage == of.storage && !same(slot.view, slot.access)) throw Unfit{};
  for (const auto& made : draft_.made_)
    if (made.view.storage == of.storage && !same(made.view, made.access)) throw Unfit{};
  if (recomputed_ && of.version != 1) throw Unfit{};  // of new memory alone
  const int rounded = group.cast(value, of.dtype, !exact);
  draft_.made_.push_back({of, access, rounded, recomputed_});
}

}  // namespace levin::compile
