#include "levin/io/weights/numpy_pickle.h"

#include <array>
#include <cstring>

#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/byte_order.h"
#include "levin/io/weights/pickle_nodes.h"

namespace levin {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr uint64_t kLongestNumpyPickle = uint64_t{4} << 30;
constexpr size_t kMostNumpyDimensions = 64;

struct NumpyType {
  std::string_view name;
  size_t bytes;
  at::ScalarType type;
};

constexpr std::array kNumpyTypes{
    NumpyType{"b1", 1, at::kBool},         NumpyType{"i1", 1, at::kChar},
    NumpyType{"u1", 1, at::kByte},         NumpyType{"i2", 2, at::kShort},
    NumpyType{"u2", 2, at::kUInt16},       NumpyType{"i4", 4, at::kInt},
    NumpyType{"u4", 4, at::kUInt32},       NumpyType{"i8", 8, at::kLong},
    NumpyType{"u8", 8, at::kUInt64},       NumpyType{"f2", 2, at::kHalf},
    NumpyType{"f4", 4, at::kFloat},        NumpyType{"f8", 8, at::kDouble},
    NumpyType{"c8", 8, at::kComplexFloat}, NumpyType{"c16", 16, at::kComplexDouble},
};

struct DtypeObject : pickle::Object {
  explicit DtypeObject(const NumpyType& type_) : type(type_) {}
  std::string_view what() const override { return "a numpy dtype"; }
  void build(const Value& state) override {
    const auto fields = state.items();
    LEVIN_CHECK(fields.size() >= 2 && !fields[1].is_none(), "[pickle] a numpy dtype has a state of ", fields.size(),
                " values");
    const auto& order = fields[1].text();
    LEVIN_CHECK(order == "<" || order == "|" || order == "=" || order == ">", "[pickle] a numpy dtype of byte order \"",
                order.substr(0, 1), "\"");
    // 3: sub-arrays; 4: the names of the fields of records.
    LEVIN_CHECK((fields.size() < 3 || fields[2].is_none()) && (fields.size() < 4 || fields[3].is_none()),
                "[pickle] numpy records and sub-arrays cannot be read");
    swapped = order == ">" && type.bytes > 1;
  }

  const NumpyType& type;
  bool swapped = false;
};

struct ArrayObject : pickle::Object {
  std::string_view what() const override { return "a numpy array"; }
  void build(const Value& state) override {
    const auto fields = state.items();
    LEVIN_CHECK(fields.size() == 5, "[pickle] a numpy array has a state of ", fields.size(), " values, not of 5");
    const bool by_columns = fields[3].is(Kind::boolean) ? fields[3].boolean() : fields[3].integer() != 0;
    fill(fields[1], fields[2], fields[4], by_columns);
  }
  size_t bytes() const override { return tensor.defined() ? tensor.nbytes() : 0; }
  void fill(const Value& shape, const Value& dtype, const Value& data, bool by_columns);

  Tensor tensor;
};

void ArrayObject::fill(const Value& shape, const Value& dtype, const Value& data, bool by_columns) {
  LEVIN_CHECK(!tensor.defined(), "[pickle] a numpy array gets its data twice");
  const auto type = dtype.object<DtypeObject>();
  LEVIN_CHECK(type, "[pickle] a numpy array of ", pickle::kind_name(dtype.kind()), " where a dtype is due");
  LEVIN_CHECK(data.is(Kind::bytes), "[pickle] the data of a numpy array are ", pickle::kind_name(data.kind()),
              "; arrays of Python objects cannot be read");
  std::vector<int64_t> sizes;
  uint64_t bytes = type->type.bytes;
  bool empty = false;
  LEVIN_CHECK(shape.items().size() <= kMostNumpyDimensions, "[pickle] a numpy array of ", shape.items().size(),
              " dimensions");
  for (const auto& size : shape.items()) {
    sizes.push_back(size.integer());
    LEVIN_CHECK(sizes.back() >= 0, "[pickle] a numpy array of size ", sizes.back());
    empty = empty || sizes.back() == 0;
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(sizes.back(), 1));
    LEVIN_CHECK(!__builtin_mul_overflow(bytes, factor, &bytes) && bytes < (uint64_t{1} << 62),
                "[pickle] the size of a numpy array overflows");
  }
  const auto& text = data.text();
  LEVIN_CHECK(text.size() == (empty ? 0 : bytes), "[pickle] a numpy array of ", empty ? 0 : bytes, " bytes has ",
              text.size());
  if (by_columns) std::reverse(sizes.begin(), sizes.end());
  tensor = at::empty(sizes, at::TensorOptions().dtype(type->type.type));
  auto* into = static_cast<std::byte*>(tensor.data_ptr());
  if (!text.empty()) std::memcpy(into, text.data(), text.size());
  if (type->swapped) {
    const bool complex = at::isComplexType(type->type.type);
    const auto width = complex ? type->type.bytes / 2 : type->type.bytes;
    detail::swap_bytes({into, text.size()}, width);
  }
  if (type->type.type == at::kBool)
    for (size_t i = 0; i < text.size(); ++i)
      LEVIN_CHECK(into[i] <= std::byte{1}, "[pickle] a numpy array of bools has a byte ",
                  std::to_integer<int>(into[i]));
  if (by_columns && sizes.size() > 1) {
    std::vector<int64_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
    tensor = tensor.permute(order).contiguous();
  }
}

Value numpy_dtype(std::span<const Value> arguments) {
  LEVIN_CHECK(!arguments.empty(), "[pickle] numpy.dtype without arguments");
  std::string_view name = arguments[0].text();
  if (!name.empty() && (name[0] == '<' || name[0] == '|' || name[0] == '=')) name.remove_prefix(1);
  for (const auto& type : kNumpyTypes)
    if (type.name == name) return Value(std::make_shared<DtypeObject>(type));
  throw Error(
      levin::detail::concat("[pickle] numpy arrays of \"", shown(name), "\" cannot be read; numbers and bools can"));
}

Value numpy_array(std::span<const Value> arguments) {
  LEVIN_CHECK(arguments.size() == 3 && arguments[0].is(Kind::global) && arguments[0].global() == "numpy.ndarray",
              "[pickle] only numpy.ndarray can be reconstructed");
  return Value(std::make_shared<ArrayObject>());
}

Value numpy_from_buffer(std::span<const Value> arguments) {
  LEVIN_CHECK(arguments.size() == 4 && arguments[3].is(Kind::text), "[pickle] _frombuffer takes 4 arguments, not ",
              arguments.size());
  const auto& order = arguments[3].text();
  LEVIN_CHECK(order == "C" || order == "F", "[pickle] _frombuffer takes the order C or F");
  auto array = std::make_shared<ArrayObject>();
  array->fill(arguments[2], arguments[1], arguments[0], order == "F");
  return Value(std::move(array));
}

Value numpy_scalar(std::span<const Value> arguments) {
  LEVIN_CHECK(arguments.size() == 2, "[pickle] a numpy scalar is made of 2 arguments, not of ", arguments.size());
  auto array = std::make_shared<ArrayObject>();
  array->fill(Value::sequence(Kind::tuple), arguments[0], arguments[1], false);
  return Value(std::move(array));
}

}  // namespace

pickle::Globals numpy_globals() {
  pickle::Globals globals;
  globals["numpy.ndarray"] = {};
  globals["numpy.dtype"] = numpy_dtype;
  for (const std::string module : {"numpy.core.", "numpy._core."}) {
    globals[module + "multiarray._reconstruct"] = numpy_array;
    globals[module + "multiarray.scalar"] = numpy_scalar;
    globals[module + "numeric._frombuffer"] = numpy_from_buffer;
  }
  return globals;
}

Value read_numpy_pickle(std::span<const std::byte> bytes, std::string_view where) {
  pickle::Options options{.globals = pickle::basic_globals()};
  options.globals.merge(numpy_globals());
  options.advice = "plain values and numpy arrays are";
  return pickle::load(bytes, options, where);
}

Value read_numpy_pickle(const std::filesystem::path& path) {
  const FileReader file(path);
  LEVIN_CHECK(file.size() <= kLongestNumpyPickle, "[pickle] \"", path.string(), "\" has ", file.size(),
              " bytes; at most ", kLongestNumpyPickle, " are read");
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return read_numpy_pickle(bytes, path.string());
}

Tensor numpy_tensor(const Value& value) {
  const auto array = value.object<ArrayObject>();
  return array ? array->tensor : Tensor();
}

}  // namespace levin
