#include "levin/io/weights/torch_pickle.h"

#include <array>
#include <optional>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/pickle_nodes.h"

namespace levin::detail {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr size_t kMostTorchDimensions = 64;
/// A tensor that repeats its storage (stride 0) is small in the file and large once copied.
constexpr int64_t kMostRepeatedElements = int64_t{1} << 28;

constexpr std::array kTorchTypes{
    TorchType{c10::ScalarType::Double, "DoubleStorage", "float64"},
    TorchType{c10::ScalarType::Float, "FloatStorage", "float32"},
    TorchType{c10::ScalarType::Half, "HalfStorage", "float16"},
    TorchType{c10::ScalarType::BFloat16, "BFloat16Storage", "bfloat16"},
    TorchType{c10::ScalarType::Long, "LongStorage", "int64"},
    TorchType{c10::ScalarType::Int, "IntStorage", "int32"},
    TorchType{c10::ScalarType::Short, "ShortStorage", "int16"},
    TorchType{c10::ScalarType::Char, "CharStorage", "int8"},
    TorchType{c10::ScalarType::Byte, "ByteStorage", "uint8"},
    TorchType{c10::ScalarType::Bool, "BoolStorage", "bool"},
    TorchType{c10::ScalarType::ComplexDouble, "ComplexDoubleStorage", "complex128"},
    TorchType{c10::ScalarType::ComplexFloat, "ComplexFloatStorage", "complex64"},
    TorchType{c10::ScalarType::ComplexHalf, nullptr, "complex32"},
    TorchType{c10::ScalarType::UInt16, nullptr, "uint16"},
    TorchType{c10::ScalarType::UInt32, nullptr, "uint32"},
    TorchType{c10::ScalarType::UInt64, nullptr, "uint64"},
    TorchType{c10::ScalarType::Float8_e4m3fn, nullptr, "float8_e4m3fn"},
    TorchType{c10::ScalarType::Float8_e5m2, nullptr, "float8_e5m2"},
    TorchType{c10::ScalarType::Float8_e4m3fnuz, nullptr, "float8_e4m3fnuz"},
    TorchType{c10::ScalarType::Float8_e5m2fnuz, nullptr, "float8_e5m2fnuz"},
    TorchType{c10::ScalarType::Float8_e8m0fnu, nullptr, "float8_e8m0fnu"},
};

struct StorageObject : pickle::Object {
  std::string_view what() const override { return "a storage"; }

  std::string key;
  /// Undefined: bytes, whose type the tensor tells.
  c10::ScalarType type = c10::ScalarType::Undefined;
  /// Elements of the storage that it has: all of them, but for a view.
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t end_bytes = 0;
};

/// Types without a class in Python have storages in TorchScript archives: "UInt16Storage".
std::string storage_name(const TorchType& type) {
  return type.storage ? type.storage : std::string(c10::toString(type.type)) + "Storage";
}

/// Strings of Python 2 are bytes.
bool is_name(const Value& value) {
  return value.is(Kind::text) || value.is(Kind::bytes);
}

/// ("storage", type, key, location, elements), and before torch 1.6 also None or (key, first element, elements) of a
/// view.
Value make_storage(const Value& id, const StorageBytes& storage_bytes) {
  const bool named = id.is(Kind::tuple) && !id.items().empty() && is_name(id.items()[0]);
  LEVIN_CHECK(!named || id.items()[0].text() != "module",
              "[pickle] the file holds a whole module; torch.save its state_dict instead");
  LEVIN_CHECK(named && id.items()[0].text() == "storage" && (id.items().size() == 5 || id.items().size() == 6) &&
                  id.items()[1].is(Kind::global) && is_name(id.items()[2]),
              "[pickle] a persistent id that is no storage");
  auto storage = std::make_shared<StorageObject>();
  storage->key = id.items()[2].text();
  const auto& name = id.items()[1].global();
  uint64_t width = 1;
  if (name != "torch.storage.UntypedStorage" && name != "torch.UntypedStorage") {
    for (const auto& type : kTorchTypes)
      if (name == "torch." + storage_name(type)) storage->type = type.type;
    LEVIN_CHECK(storage->type != c10::ScalarType::Undefined, "[pickle] ", name, " is no storage");
    width = c10::elementSize(storage->type);
  }
  const auto count = id.items()[4].integer();
  LEVIN_CHECK(count >= 0, "[pickle] storage \"", shown(storage->key), "\" is said to have ", count, " elements");
  const auto bytes = storage_bytes(storage->key, static_cast<uint64_t>(count), width);
  uint64_t declared = 0;
  LEVIN_CHECK(!__builtin_mul_overflow(static_cast<uint64_t>(count), width, &declared) && declared == bytes,
              "[pickle] storage \"", shown(storage->key), "\" is said to have ", count, " elements of ", width,
              " bytes; its record has ", bytes, " bytes");
  storage->end = count;
  if (id.items().size() == 6 && !id.items()[5].is_none()) {
    const auto& view = id.items()[5];
    LEVIN_CHECK(view.is(Kind::tuple) && view.items().size() == 3 && storage->type != c10::ScalarType::Undefined,
                "[pickle] a view of a storage that is no view");
    storage->begin = view.items()[1].integer();
    const auto elements = view.items()[2].integer();
    LEVIN_CHECK(storage->begin >= 0 && elements >= 0 && storage->begin <= count && elements <= count - storage->begin,
                "[pickle] a view of ", elements, " elements from ", storage->begin, " on of storage \"",
                shown(storage->key), "\", which has ", count);
    storage->end = storage->begin + elements;
  }
  storage->end_bytes = static_cast<uint64_t>(storage->end) * width;
  return Value(std::move(storage));
}

std::vector<int64_t> torch_numbers(const Value& value, const char* what) {
  LEVIN_CHECK(value.is(Kind::tuple) && value.items().size() <= kMostTorchDimensions, "[pickle] the ", what,
              " of a tensor is ", pickle::kind_name(value.kind()), ", not a tuple of at most ", kMostTorchDimensions);
  std::vector<int64_t> numbers;
  for (const auto& item : value.items()) {
    numbers.push_back(item.integer());
    LEVIN_CHECK(numbers.back() >= 0, "[pickle] a tensor of ", what, " ", numbers.back());
  }
  return numbers;
}

/// What the tensor would reach beyond its storage is found out without a product that could overflow.
void check_place(const TorchEntry& entry, uint64_t storage_bytes) {
  const auto elements = static_cast<int64_t>(storage_bytes / c10::elementSize(entry.dtype));
  int64_t count = 1;
  int64_t last = entry.offset;
  bool overflow = false;
  bool empty = false;
  for (const auto size : entry.shape) empty = empty || size == 0;
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    const auto size = entry.shape[i];
    overflow = __builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count) || overflow;
    int64_t reach = 0;
    overflow = __builtin_mul_overflow(std::max<int64_t>(size, 1) - 1, entry.strides[i], &reach) || overflow;
    overflow = __builtin_add_overflow(last, reach, &last) || overflow;
  }
  LEVIN_CHECK(!overflow, "[pickle] the size of a tensor overflows");
  LEVIN_CHECK(empty ? entry.offset <= elements : last < elements, "[pickle] a tensor reaches element ", last,
              " of storage \"", shown(entry.storage), "\", which has ", elements);
  LEVIN_CHECK(empty || count <= std::max(elements, kMostRepeatedElements), "[pickle] a tensor of ", count,
              " elements repeats a storage of ", elements);
}

Value make_tensor(std::span<const Value> arguments, const Value* dtype) {
  const auto storage = arguments[0].object<StorageObject>();
  LEVIN_CHECK(storage, "[pickle] a tensor is made of ", pickle::kind_name(arguments[0].kind()), ", not of a storage");
  auto tensor = std::make_shared<TorchTensorObject>();
  auto& entry = tensor->entry;
  entry.storage = storage->key;
  entry.dtype = storage->type;
  if (dtype) {
    entry.dtype = c10::ScalarType::Undefined;
    for (const auto& type : kTorchTypes)
      if (dtype->is(Kind::global) && dtype->global() == std::string("torch.") + type.name) entry.dtype = type.type;
  }
  LEVIN_CHECK(entry.dtype != c10::ScalarType::Undefined, "[pickle] a tensor without a dtype");
  const auto offset = arguments[1].integer();
  LEVIN_CHECK(offset >= 0 && !__builtin_add_overflow(offset, storage->begin, &entry.offset),
              "[pickle] a tensor from element ", offset, " on");
  entry.shape = torch_numbers(arguments[2], "size");
  entry.strides = torch_numbers(arguments[3], "stride");
  LEVIN_CHECK(entry.offset >= 0 && entry.shape.size() == entry.strides.size(), "[pickle] a tensor of ",
              entry.shape.size(), " sizes and ", entry.strides.size(), " strides from element ", entry.offset, " on");
  check_place(entry, storage->end_bytes);
  return Value(std::move(tensor));
}

void check_torch_count(const char* name, std::span<const Value> arguments, size_t least, size_t most) {
  LEVIN_CHECK(arguments.size() >= least && arguments.size() <= most, "[pickle] ", name, " with ", arguments.size(),
              " arguments");
}

/// What a view brings that is conjugated or negated only when it is read.
void check_resolved(const Value& attributes) {
  if (!attributes.is(Kind::dict)) return;
  for (const char* name : {"conj", "neg"}) {
    const auto* value = attributes.find(name);
    LEVIN_CHECK(!value || !value->is(Kind::boolean) || !value->boolean(), "[pickle] a tensor with its ", name,
                " bit set; save tensor.resolve_", name, "() instead");
  }
}

Value make_path(std::span<const Value> arguments) {
  std::string path;
  for (const auto& part : arguments) {
    LEVIN_CHECK(is_name(part), "[pickle] a path is made of ", pickle::kind_name(part.kind()), ", not of strings");
    if (!path.empty() && !path.ends_with('/')) path += '/';
    path += part.text();
  }
  return Value(Kind::text, path);
}

/// Lists that TorchScript wrote, with the types of their elements beside them.
void add_script_globals(pickle::Globals& globals) {
  for (const char* name : {"build_intlist", "build_doublelist", "build_boollist", "build_tensorlist"})
    globals[std::string("torch.jit._pickle.") + name] = [](std::span<const Value> arguments) {
      check_torch_count("a list of TorchScript", arguments, 1, 1);
      return arguments[0];
    };
  globals["torch.jit._pickle.restore_type_tag"] = [](std::span<const Value> arguments) {
    check_torch_count("restore_type_tag", arguments, 2, 2);
    return arguments[0];
  };
  for (const auto& type : kTorchTypes) globals["torch." + storage_name(type)] = {};
}

pickle::Globals torch_globals() {
  auto globals = pickle::basic_globals();
  for (const auto& type : kTorchTypes) {
    if (type.storage) globals[std::string("torch.") + type.storage] = {};
    globals[std::string("torch.") + type.name] = {};
  }
  globals["torch.storage.UntypedStorage"] = {};
  globals["torch.UntypedStorage"] = {};
  globals["torch._utils._rebuild_tensor"] = [](std::span<const Value> arguments) {
    check_torch_count("_rebuild_tensor", arguments, 4, 4);
    return make_tensor(arguments, nullptr);
  };
  globals["torch._utils._rebuild_tensor_v2"] = [](std::span<const Value> arguments) {
    check_torch_count("_rebuild_tensor_v2", arguments, 6, 7);
    if (arguments.size() == 7) check_resolved(arguments[6]);
    return make_tensor(arguments, nullptr);
  };
  globals["torch._utils._rebuild_tensor_v3"] = [](std::span<const Value> arguments) {
    check_torch_count("_rebuild_tensor_v3", arguments, 7, 8);
    return make_tensor(arguments, &arguments[6]);
  };
  const auto parameter = [](std::span<const Value> arguments) {
    check_torch_count("_rebuild_parameter", arguments, 3, 4);
    LEVIN_CHECK(arguments[0].object<TorchTensorObject>(), "[pickle] a parameter is made of ",
                pickle::kind_name(arguments[0].kind()), ", not of a tensor");
    return arguments[0];
  };
  globals["torch._utils._rebuild_parameter"] = parameter;
  globals["torch._utils._rebuild_parameter_with_state"] = parameter;
  globals["torch.Size"] = [](std::span<const Value> arguments) {
    check_torch_count("torch.Size", arguments, 1, 1);
    const auto items = arguments[0].items();
    return Value::sequence(Kind::tuple, {items.begin(), items.end()});
  };
  // Files of the first torch have parameters by their class.
  globals["torch.nn.parameter.Parameter"] = [](std::span<const Value> arguments) {
    check_torch_count("Parameter", arguments, 1, 2);
    LEVIN_CHECK(arguments[0].object<TorchTensorObject>(), "[pickle] a parameter is made of ",
                pickle::kind_name(arguments[0].kind()), ", not of a tensor");
    return arguments[0];
  };
  // What training scripts write beside the weights.
  globals["argparse.Namespace"] = [](std::span<const Value> arguments) {
    check_torch_count("argparse.Namespace", arguments, 0, 0);
    return Value(std::make_shared<NamespaceObject>());
  };
  for (const char* module : {"pathlib.", "pathlib._local."})
    for (const char* name : {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"})
      globals[std::string(module) + name] = make_path;
  globals["torch.device"] = [](std::span<const Value> arguments) {
    check_torch_count("torch.device", arguments, 1, 2);
    return arguments[0];
  };
  return globals;
}

}  // namespace

std::span<const TorchType> torch_types() {
  return kTorchTypes;
}

std::optional<std::string> plain_text(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.boolean() ? "true" : "false";
    case Kind::integer:
      return std::to_string(value.integer());
    case Kind::real:
      return fmt::format("{}", value.real());
    case Kind::text:
    case Kind::bytes:
      return shown(value.text());
    case Kind::big_integer:
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
    case Kind::dict:
    case Kind::global:
    case Kind::object:
      return std::nullopt;
  }
  return std::nullopt;
}

void NamespaceObject::build(const Value& state) {
  LEVIN_CHECK(state.is(Kind::dict), "[pickle] an argparse.Namespace takes a dict, not ",
              pickle::kind_name(state.kind()));
  for (const auto& [key, value] : state.pairs()) {
    const auto text = plain_text(value);
    if (!is_name(key) || !text) continue;
    const auto [found, fresh] = values.emplace(shown(key.text()), *text);
    if (fresh) size += found->first.size() + found->second.size();
  }
}

Value load_torch_pickle(std::span<const std::byte> bytes, const StorageBytes& storage_bytes, std::string_view where,
                        size_t* used, bool script) {
  pickle::Options options;
  options.globals = torch_globals();
  if (script) {
    add_script_globals(options.globals);
    options.classes = [](std::string_view name) { return name.starts_with("__torch__."); };
  }
  options.persistent = [&](const Value& id) { return make_storage(id, storage_bytes); };
  options.advice = "tensors and plain values are (torch.save the state_dict alone)";
  return pickle::load(bytes, options, where, used);
}

}  // namespace levin::detail
