#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// A closed reader of Python's pickles. A pickle is a program; this one can make dicts, lists, tuples, sets, strings,
/// bytes, numbers, None, and what the caller's table of names allows. Every other name is refused, by name, when it is
/// read and thus before anything could be called. Protocols 2 to 5.
///
///     auto value = levin::pickle::load(bytes, {.globals = levin::pickle::basic_globals()}, "batch.pkl");
///     for (const auto& [key, item] : value.pairs()) ...
namespace levin::pickle {

enum class Kind { none, boolean, integer, big_integer, real, text, bytes, list, tuple, set, dict, global, object };
/// "a dict", "an integer": for messages.
std::string_view kind_name(Kind kind);

class Value;
using Pair = std::pair<Value, Value>;

/// Something that a name of the caller's table made. It must not keep Values.
class Object {
 public:
  virtual ~Object() = default;
  /// What it is, for messages: "a tensor".
  virtual std::string_view what() const = 0;
  /// The opcode BUILD: takes what __setstate__ would take. An Error unless overridden.
  virtual void build(const Value& state);
  /// Memory that it took for itself; a pickle cannot ask for more of it than it has bytes.
  virtual size_t bytes() const { return 0; }
};

namespace detail {
struct Sequence;
struct Dict;
struct Text {
  Kind kind;
  std::string value;
};
struct Global {
  std::string name;
};
}  // namespace detail

/// One value of the tree; copies share what they hold. Asking for what it is not is an Error.
class Value {
 public:
  Value() = default;
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  /// `kind` is text, bytes or big_integer (its bytes, little-endian, two's complement).
  Value(Kind kind, std::string value);
  static Value global(std::string name);
  /// `kind` is list, tuple or set.
  static Value sequence(Kind kind, std::vector<Value> items = {});
  static Value dict();

  Kind kind() const;
  bool is(Kind kind_) const { return kind() == kind_; }
  bool is_none() const { return is(Kind::none); }

  bool boolean() const;
  int64_t integer() const;
  /// A real number or an integer.
  double real() const;
  /// Text and bytes alike: strings of Python 2 are bytes, and name things all the same. Also a big integer's bytes.
  const std::string& text() const;
  /// The elements of a list, a tuple or a set.
  std::span<const Value> items() const;
  /// The items of a dict, in order.
  std::span<const Pair> pairs() const;
  /// The value of a text (or bytes) key of a dict; null when there is none.
  const Value* find(std::string_view key) const;
  /// "torch.float32": an allowed name that was not called.
  const std::string& global() const;
  /// The class of a dict that has the attributes of an object (see Options::classes); empty for any other value.
  std::string_view class_name() const;
  /// The object when it is a T, else null.
  template <class T>
  std::shared_ptr<T> object() const {
    const auto* held = std::get_if<std::shared_ptr<Object>>(&data_);
    return held ? std::dynamic_pointer_cast<T>(*held) : nullptr;
  }

 private:
  friend class Machine;
  template <class T>
  const T& get(Kind expected) const;

  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const detail::Text>,
               std::shared_ptr<detail::Sequence>, std::shared_ptr<detail::Dict>, std::shared_ptr<const detail::Global>,
               std::shared_ptr<Object>>
      data_;
};

/// What calling an allowed name gives (REDUCE, NEWOBJ); gets the arguments. Empty: the name may stand, not be called.
using Call = std::function<Value(std::span<const Value> arguments)>;
/// "module.name" to what it does.
using Globals = std::map<std::string, Call, std::less<>>;

/// Names that stand for plain values: OrderedDict, defaultdict, Counter, set, frozenset, bytearray, and the
/// _codecs.encode by which protocol 2 writes bytes.
Globals basic_globals();

struct Limits {
  /// Values made, all in all; also what the tree may have when shared parts are counted at each of their places.
  size_t values = 4'000'000;
  size_t stack = 1'000'000;
  size_t depth = 100;
  size_t key_bytes = 4096;
};

struct Options {
  Globals globals = {};
  /// Names of classes whose objects are read as dicts of their attributes; nothing of a class is ever run.
  std::function<bool(std::string_view name)> classes = {};
  /// What a persistent id stands for (the storages of a torch file); without it such an id is an Error.
  std::function<Value(const Value& id)> persistent = {};
  Limits limits = {};
  /// Stands at the end of the error for a name that is not allowed.
  std::string advice = {};
};

/// Reads one pickle. `where` names the file in errors: `[pickle] "x.pt": asks for posix.system, which is not allowed`.
/// `used`, when given, gets the number of bytes read; else bytes after the end are an Error. Values that contain
/// themselves are refused, so every walk over the result ends.
Value load(std::span<const std::byte> bytes, const Options& options, std::string_view where, size_t* used = nullptr);

}  // namespace levin::pickle
