#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/config/node.h"

namespace levin::config {

/// A value that a field cannot take; the line continues after the key and the value: "is not a whole number".
struct BadValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {
bool read_bool(const Node& node);
int64_t read_int(const Node& node, int64_t least, int64_t most);
double read_double(const Node& node);
/// The text of a scalar; empty for null.
std::string read_text(const Node& node);
/// The items of a list, or of a text with commas ("1,2,3", "[1, 2, 3]").
std::vector<Node> read_items(const Node& node);
/// The entries of a map, or of a text with colons and commas ("0:8,4:4").
std::vector<Node::Entry> read_pairs(const Node& node);
std::string write_double(double value);
bool is_none(const Node& node);

template <class>
inline constexpr bool kNever = false;
template <class T>
concept FromText = std::constructible_from<T, std::string_view> || std::constructible_from<T, std::string>;
}  // namespace detail

/// How values of a type are read from and written as text. Levin knows bool, integers, floating point, std::string,
/// std::filesystem::path, std::optional, std::vector, std::array and std::map of those, and any type with a constructor
/// from std::string_view (or std::string) and `to_string()`. Specialize it for others.
template <class T>
struct Codec {
  static_assert(
      detail::FromText<T> && requires(const T& value) { value.to_string(); },
      "levin: a field of this type cannot be read from text: give the type a constructor from "
      "std::string_view and a method to_string(), or specialize levin::config::Codec");
  static std::string type() { return "VALUE"; }
  static T read(const Node& node) {
    if constexpr (std::constructible_from<T, std::string_view>)
      return T(std::string_view(detail::read_text(node)));
    else
      return T(detail::read_text(node));
  }
  static Node write(const T& value) { return Node::of_text(std::string(value.to_string())); }
};

template <>
struct Codec<bool> {
  static std::string type() { return "BOOL"; }
  static bool read(const Node& node) { return detail::read_bool(node); }
  static Node write(bool value) { return Node::of_text(value ? "true" : "false"); }
};

template <std::integral T>
struct Codec<T> {
  static std::string type() { return "N"; }
  static T read(const Node& node) {
    constexpr auto most = std::numeric_limits<T>::max();
    return static_cast<T>(detail::read_int(node, static_cast<int64_t>(std::numeric_limits<T>::min()),
                                           std::cmp_greater(most, std::numeric_limits<int64_t>::max())
                                               ? std::numeric_limits<int64_t>::max()
                                               : static_cast<int64_t>(most)));
  }
  static Node write(T value) { return Node::of_text(std::to_string(value)); }
};

template <std::floating_point T>
struct Codec<T> {
  static std::string type() { return "X"; }
  static T read(const Node& node) { return static_cast<T>(detail::read_double(node)); }
  static Node write(T value) { return Node::of_text(detail::write_double(static_cast<double>(value))); }
};

template <>
struct Codec<std::string> {
  static std::string type() { return "TEXT"; }
  static std::string read(const Node& node) { return detail::read_text(node); }
  static Node write(const std::string& value) { return value.empty() ? Node() : Node::of_text(value, true); }
};

template <>
struct Codec<std::filesystem::path> {
  static std::string type() { return "PATH"; }
  static std::filesystem::path read(const Node& node) { return detail::read_text(node); }
  static Node write(const std::filesystem::path& value) { return Codec<std::string>::write(value.string()); }
};

template <class T>
struct Codec<std::optional<T>> {
  static std::string type() { return Codec<T>::type(); }
  static std::optional<T> read(const Node& node) {
    if (node.is_null() || (!std::same_as<T, std::string> && detail::is_none(node))) return {};
    return Codec<T>::read(node);
  }
  static Node write(const std::optional<T>& value) { return value ? Codec<T>::write(*value) : Node(); }
};

template <class T>
struct Codec<std::vector<T>> {
  static std::string type() { return Codec<T>::type() + ",..."; }
  static std::vector<T> read(const Node& node) {
    std::vector<T> values;
    for (const auto& item : detail::read_items(node)) values.push_back(Codec<T>::read(item));
    return values;
  }
  static Node write(const std::vector<T>& values) {
    std::vector<Node> items;
    for (const auto& value : values) items.push_back(Codec<T>::write(value));
    return Node::of_list(std::move(items));
  }
};

template <class T, size_t N>
struct Codec<std::array<T, N>> {
  static std::string type() { return Codec<T>::type() + ",..."; }
  static std::array<T, N> read(const Node& node) {
    const auto list = Codec<std::vector<T>>::read(node);
    if (list.size() != N)
      throw BadValue("has " + std::to_string(list.size()) + " values where " + std::to_string(N) + " are needed");
    std::array<T, N> values;
    std::copy(list.begin(), list.end(), values.begin());
    return values;
  }
  static Node write(const std::array<T, N>& values) {
    return Codec<std::vector<T>>::write({values.begin(), values.end()});
  }
};

/// `{0: 8, 4: 4}` in a file, "0:8,4:4" as a flag.
template <class K, class V>
struct Codec<std::map<K, V>> {
  static std::string type() { return Codec<K>::type() + ":" + Codec<V>::type() + ",..."; }
  static std::map<K, V> read(const Node& node) {
    std::map<K, V> values;
    for (const auto& [name, value] : detail::read_pairs(node))
      values[Codec<K>::read(Node::of_text(name))] = Codec<V>::read(value);
    return values;
  }
  static Node write(const std::map<K, V>& values) {
    auto node = Node::of_map();
    for (const auto& [name, value] : values) node[Codec<K>::write(name).text] = Codec<V>::write(value);
    return node;
  }
};

struct Class;
struct Chosen;
class AnyOptions;

/// One thing that can be set by its name. It is bound to a variable, which must outlive it.
struct Field {
  /// With dots for what lies deeper: "trainer.max_epochs".
  std::string name;
  std::string help;
  /// What stands for the value in the help: "N", "PATH".
  std::string type = {};
  /// The values there are; others are refused, and shells complete these.
  std::vector<std::string> words = {};
  /// Only for completion: other values are allowed too.
  bool words_are_hints = false;
  /// A flag without a value means true.
  bool is_bool = false;
  /// A text is never taken for a list, whatever it starts with.
  bool is_plain_text = false;
  /// Left out of the help.
  bool is_hidden = false;
  /// Other names that are accepted.
  std::vector<std::string> aliases = {};
  std::function<void(const Node&)> read = {};
  std::function<Node()> write = {};

  /// For a field whose value is one of several classes with options of their own (an optimizer), or a list of such.
  const std::vector<Class>* classes = nullptr;
  bool takes_many = false;
  std::vector<Chosen>* chosen = nullptr;
};

namespace detail {

/// What a struct's `fields` is given: f("name", member, "one line of help", {"allowed", "words"}).
class Describe {
 public:
  Describe(std::vector<Field>& into, std::string prefix) : into_(&into), prefix_(std::move(prefix)) {}
  template <class T>
  void operator()(std::string_view name, T& value, std::string_view help, std::vector<std::string> words = {}) const;
  /// The fields of a struct whose type is not known here.
  void operator()(const AnyOptions& options) const;

 private:
  std::vector<Field>* into_;
  std::string prefix_;
};

struct Probe {
  template <class T>
  void operator()(std::string_view, T&, std::string_view, std::vector<std::string> = {}) const {}
  void operator()(const AnyOptions&) const {}
};
template <class T>
concept HasMemberFields = requires(T& options, Probe f) {
  options.fields(f);
};
template <class T>
concept HasFreeFields = requires(T& options, Probe f) {
  fields(options, f);
};

}  // namespace detail

/// An options struct that says what its fields are, by a member
///
///     struct Options {
///       double lr = 1e-3;
///       void fields(auto f) { f("lr", lr, "learning rate"); }
///     };
///
/// or by a function beside it, `void fields(Options& o, auto f) { f("lr", o.lr, "learning rate"); }`. A fourth argument
/// lists the words that are allowed. A field may be such a struct itself.
template <class T>
concept Described = detail::HasMemberFields<T> || detail::HasFreeFields<T>;

/// Adds the fields of a struct, with `prefix` before their names, bound to the struct.
template <class T>
void add_fields(std::vector<Field>& into, T& options, const std::string& prefix = {}) {
  static_assert(Described<T>,
                "levin: the options do not say what their fields are: add `void fields(auto f) { f(\"name\", name, "
                "\"what it means\"); }`");
  const detail::Describe describe(into, prefix);
  if constexpr (detail::HasMemberFields<T>)
    options.fields(describe);
  else if constexpr (detail::HasFreeFields<T>)
    fields(options, describe);
}

/// A field for one variable.
template <class T>
Field make_field(std::string name, T& value, std::string help, std::vector<std::string> words = {}) {
  Field field{.name = std::move(name), .help = std::move(help), .type = Codec<T>::type(), .words = std::move(words)};
  field.is_bool = std::same_as<T, bool> || std::same_as<T, std::optional<bool>>;
  field.is_plain_text = std::same_as<T, std::string> || std::same_as<T, std::filesystem::path> ||
                        std::same_as<T, std::optional<std::string>>;
  field.read = [at = &value](const Node& node) { *at = Codec<T>::read(node); };
  field.write = [at = &value] { return Codec<T>::write(*at); };
  return field;
}

template <class T>
void detail::Describe::operator()(std::string_view name, T& value, std::string_view help,
                                  std::vector<std::string> words) const {
  if constexpr (Described<T>)
    add_fields(*into_, value, prefix_ + std::string(name) + ".");
  else
    into_->push_back(make_field(prefix_ + std::string(name), value, std::string(help), std::move(words)));
}

/// An options struct of any type, with its fields. Copies share.
class AnyOptions {
 public:
  AnyOptions() = default;
  template <Described T>
  explicit AnyOptions(T options) {
    auto held = std::make_shared<T>(std::move(options));
    add_fields(fields_, *held);
    held_ = std::move(held);
  }

  /// `T` must be the type it was made of.
  template <class T>
  T& get() const {
    return *static_cast<T*>(held_.get());
  }
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::shared_ptr<void> held_;
  std::vector<Field> fields_;
};

/// Something that is chosen by name and has options of its own.
struct Class {
  std::string name;
  std::string help;
  std::function<AnyOptions()> options;
};

/// The class of this name, in letters of either case; null when there is none.
const Class* find_class(const std::vector<Class>& classes, std::string_view name);

/// One that was chosen, with its options read.
struct Chosen {
  std::string name;
  AnyOptions options;
  Origin origin;
  /// Who set which option.
  std::vector<std::pair<std::string, Origin>> said = {};
};

/// A field that chooses one of the classes, or several of them.
Field make_class_field(std::string name, std::string help, const std::vector<Class>& classes,
                       std::vector<Chosen>& chosen, bool takes_many = false);

}  // namespace levin::config
