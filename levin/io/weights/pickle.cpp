#include "levin/io/weights/pickle.h"

#include <bit>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/pickle_nodes.h"

namespace levin::pickle {

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a bool";
    case Kind::integer:
      return "an integer";
    case Kind::big_integer:
      return "an integer of more than 64 bits";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a string";
    case Kind::bytes:
      return "bytes";
    case Kind::list:
      return "a list";
    case Kind::tuple:
      return "a tuple";
    case Kind::set:
      return "a set";
    case Kind::dict:
      return "a dict";
    case Kind::global:
      return "a name";
    case Kind::object:
      return "an object";
  }
  return "a value";
}

void Object::build(const Value&) {
  throw Error(levin::detail::concat("[pickle] ", what(), " takes no state"));
}

Value::Value(Kind kind, std::string value)
    : data_(std::make_shared<const detail::Text>(detail::Text{kind, std::move(value)})) {}

Value Value::global(std::string name) {
  Value value;
  value.data_ = std::make_shared<const detail::Global>(detail::Global{std::move(name)});
  return value;
}

Value Value::sequence(Kind kind, std::vector<Value> items) {
  Value value;
  value.data_ = std::make_shared<detail::Sequence>(detail::Sequence{kind, std::move(items)});
  return value;
}

Value Value::dict() {
  Value value;
  value.data_ = std::make_shared<detail::Dict>();
  return value;
}

Kind Value::kind() const {
  switch (data_.index()) {
    case 0:
      return Kind::none;
    case 1:
      return Kind::boolean;
    case 2:
      return Kind::integer;
    case 3:
      return Kind::real;
    case 4:
      return std::get<4>(data_)->kind;
    case 5:
      return std::get<5>(data_)->kind;
    case 6:
      return Kind::dict;
    case 7:
      return Kind::global;
    default:
      return Kind::object;
  }
}

template <class T>
const T& Value::get(Kind expected) const {
  if (const auto* held = std::get_if<T>(&data_)) return *held;
  throw Error(levin::detail::concat("[pickle] ", kind_name(expected), " is needed where ", kind_name(kind()), " is"));
}

bool Value::boolean() const {
  return get<bool>(Kind::boolean);
}

int64_t Value::integer() const {
  return get<int64_t>(Kind::integer);
}

double Value::real() const {
  if (const auto* whole = std::get_if<int64_t>(&data_)) return static_cast<double>(*whole);
  return get<double>(Kind::real);
}

const std::string& Value::text() const {
  return get<std::shared_ptr<const detail::Text>>(Kind::text)->value;
}

std::span<const Value> Value::items() const {
  return get<std::shared_ptr<detail::Sequence>>(Kind::list)->items;
}

std::span<const Pair> Value::pairs() const {
  return get<std::shared_ptr<detail::Dict>>(Kind::dict)->pairs;
}

const Value* Value::find(std::string_view key) const {
  const auto& dict = *get<std::shared_ptr<detail::Dict>>(Kind::dict);
  for (const char mark : {'s', 'b'}) {
    const auto found = dict.index.find(detail::marked_key(mark, key));
    if (found != dict.index.end()) return &dict.pairs[found->second].second;
  }
  return nullptr;
}

std::string_view Value::class_name() const {
  const auto* held = std::get_if<std::shared_ptr<detail::Dict>>(&data_);
  return held && (*held)->type ? std::string_view((*held)->type->name) : std::string_view();
}

const std::string& Value::global() const {
  return get<std::shared_ptr<const detail::Global>>(Kind::global)->name;
}

bool detail::Dict::set(Value key, Value value) {
  std::string marked;
  switch (key.kind()) {
    case Kind::none:
      marked = "n";
      break;
    case Kind::boolean:
      marked = marked_key('i', key.boolean() ? "1" : "0");
      break;
    case Kind::integer:
      marked = marked_key('i', std::to_string(key.integer()));
      break;
    case Kind::real:
      marked = marked_key('r', std::to_string(std::bit_cast<uint64_t>(key.real())));
      break;
    case Kind::text:
      marked = marked_key('s', key.text());
      break;
    case Kind::bytes:
      marked = marked_key('b', key.text());
      break;
    case Kind::global:
      marked = marked_key('g', key.global());
      break;
    default:
      throw Error(levin::detail::concat("[pickle] ", kind_name(key.kind()),
                                        " is the key of a dict; strings, numbers and None are allowed"));
  }
  if (!index.emplace(std::move(marked), pairs.size()).second) return false;
  pairs.emplace_back(std::move(key), std::move(value));
  return true;
}

namespace {

Value plain_items(Kind kind, std::span<const Value> arguments) {
  if (arguments.empty()) return Value::sequence(kind);
  LEVIN_CHECK(arguments.size() == 1, "[pickle] a set is made of one list, not of ", arguments.size(), " arguments");
  const auto items = arguments[0].items();
  return Value::sequence(kind, {items.begin(), items.end()});
}

Value make_ordered_dict(std::span<const Value> arguments) {
  auto dict = Value::dict();
  LEVIN_CHECK(arguments.size() <= 1, "[pickle] an OrderedDict is made of at most one argument, not of ",
              arguments.size());
  if (arguments.empty()) return dict;
  const auto put = [&](const Value& key, const Value& value) {
    LEVIN_CHECK(detail::dict_of(dict).set(key, value), "[pickle] a key stands twice in an OrderedDict");
  };
  if (arguments[0].is(Kind::dict)) {
    for (const auto& [key, value] : arguments[0].pairs()) put(key, value);
    return dict;
  }
  for (const auto& pair : arguments[0].items()) {
    LEVIN_CHECK(pair.items().size() == 2, "[pickle] an OrderedDict is made of pairs, not of ", pair.items().size(),
                " values");
    put(pair.items()[0], pair.items()[1]);
  }
  return dict;
}

/// The bytes whose latin1 reading a UTF-8 text is.
std::string to_latin1(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      bytes.push_back(text[i]);
      continue;
    }
    LEVIN_CHECK((c == 0xc2 || c == 0xc3) && i + 1 < text.size(),
                "[pickle] _codecs.encode: a character beyond latin1 in bytes");
    bytes.push_back(static_cast<char>((c << 6) | (text[++i] & 0x3f)));
  }
  return bytes;
}

Value encode(std::span<const Value> arguments) {
  LEVIN_CHECK(arguments.size() == 2 && arguments[0].is(Kind::text) && arguments[1].is(Kind::text),
              "[pickle] _codecs.encode takes a text and the name of an encoding");
  const auto& name = arguments[1].text();
  LEVIN_CHECK(name == "latin1" || name == "latin-1", "[pickle] _codecs.encode to \"", shown(name),
              "\"; latin1 is allowed");
  return Value(Kind::bytes, to_latin1(arguments[0].text()));
}

Value make_bytes(std::span<const Value> arguments) {
  if (arguments.empty()) return Value(Kind::bytes, "");
  if (arguments.size() == 1 && arguments[0].is(Kind::bytes)) return arguments[0];
  // bytearray(text, "latin-1") is how protocol 2 writes one.
  return encode(arguments);
}

}  // namespace

Globals basic_globals() {
  Globals globals;
  globals["collections.OrderedDict"] = make_ordered_dict;
  globals["collections.Counter"] = make_ordered_dict;
  // The factory of a defaultdict says what a missing key would give; a reader has no use for it.
  globals["collections.defaultdict"] = [](std::span<const Value> arguments) {
    LEVIN_CHECK(arguments.size() <= 2, "[pickle] a defaultdict takes at most 2 arguments, not ", arguments.size());
    return make_ordered_dict(arguments.empty() ? arguments : arguments.subspan(1));
  };
  for (const std::string module : {"builtins.", "__builtin__."}) {
    globals[module + "set"] = [](std::span<const Value> arguments) { return plain_items(Kind::set, arguments); };
    globals[module + "frozenset"] = globals[module + "set"];
    globals[module + "bytearray"] = make_bytes;
    globals[module + "bytes"] = make_bytes;
    for (const char* factory : {"dict", "list", "tuple", "int", "float", "str", "bool"}) globals[module + factory] = {};
  }
  globals["_codecs.encode"] = encode;
  return globals;
}

}  // namespace levin::pickle
