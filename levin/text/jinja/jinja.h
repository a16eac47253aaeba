#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "levin/text/chat_template.h"

/// The part of Jinja that chat templates use: values, the tree of a template, and its evaluation.
namespace levin::text::jinja {

class Value;
class Interpreter;
using List = std::vector<Value>;
/// In the order of insertion, as in Python.
using Dict = std::vector<std::pair<Value, Value>>;

struct Arguments;
/// A function, a macro or a bound method.
using Function = std::function<Value(Interpreter&, const Arguments&)>;

struct Undefined {
  std::string name;
};
struct None {};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(static_cast<int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list) : data_(std::make_shared<const List>(std::move(list))) {}
  Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}
  static Value tuple(List list);
  static Value function(Function function);
  static Value name_space(Dict values);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  /// A list that Python calls a tuple; it is written with other brackets.
  bool is_tuple() const { return is_tuple_; }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_namespace() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<const Function>>(data_); }

  const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Dict& name_space() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  /// Of a bool or an int.
  int64_t integer() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }

  /// As Python's bool().
  bool truth() const;
  bool equals(const Value& other) const;
  /// "str", "int": Python's name of the type.
  const char* type_name() const;
  /// The value of a key; null when the dict has none.
  static const Value* find(const Dict& dict, const Value& key);

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Dict>, std::shared_ptr<const Function>>
      data_;
  bool is_tuple_ = false;
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(size_t position, std::string_view name) const;
  /// The argument, or `otherwise`.
  Value get(size_t position, std::string_view name, Value otherwise) const;
};

/// Python's str() and repr(), and its json.dumps.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
struct JsonStyle {
  int indent = -1;
  std::string comma = ", ", colon = ": ";
  bool ascii = false, sorted = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

struct Node;
using NodePointer = std::unique_ptr<Node>;

/// A node of the tree; which members count depends on the kind.
struct Node {
  enum class Kind {
    // statements
    kBlock,
    kGeneration,
    kText,
    kOutput,
    kIf,
    kFor,
    kSet,
    kSetBlock,
    kMacro,
    kCall,
    kFilterBlock,
    kBreak,
    kContinue,
    // expressions
    kLiteral,
    kName,
    kList,
    kTuple,
    kDict,
    kAttribute,
    kItem,
    kSlice,
    kInvoke,
    kFilter,
    kTest,
    kNot,
    kAnd,
    kOr,
    kUnary,
    kBinary,
    kCompare,
    kConditional
  };
  Kind kind = Kind::kBlock;
  int line = 0;
  int depth = 1;
  std::string text;                 // kText, names, operators
  std::vector<std::string> names;   // targets, parameters, names of arguments, operators of kCompare
  Value value;                      // kLiteral
  std::vector<NodePointer> parts;   // operands; null where a slice leaves one out
  std::vector<NodePointer> others;  // kIf, kFor: else; arguments with names; defaults
};

/// The tree of a template.
NodePointer parse_template(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& what);

/// Filters, tests, methods and functions by name; they throw Error without the line, which the interpreter adds.
Value apply_filter(Interpreter& interpreter, const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(Interpreter& interpreter, const std::string& name, const Value& value, const Arguments& arguments);
bool is_filter(const std::string& name);
bool is_test(const std::string& name);
/// The method or member of a value, or Undefined.
Value attribute(const Value& value, const std::string& name);
Value global_function(const std::string& name);

/// Renders a tree. One for each rendering.
class Interpreter {
 public:
  explicit Interpreter(const ChatLimits& limits) : limits_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  std::string render(const Node& tree, Dict variables);
  /// Bytes of the result that stand in {% generation %}.
  const std::vector<Span>& generated() const { return generated_; }

  /// Counts a text that was made.
  void charge(uint64_t bytes);
  /// Counts work.
  void step(uint64_t count = 1);
  Value call(const Value& function, const Arguments& arguments);
  /// A namespace may hold itself: those that are kept are emptied at the end.
  Value keep(Value name_space);

 private:
  struct Scope {
    std::map<std::string, Value> values;
    std::shared_ptr<Scope> parent;
  };
  enum class Flow { kOn, kBreak, kContinue };

  Flow run(const Node& node);
  Flow run_all(const std::vector<NodePointer>& nodes);
  Flow run_for(const Node& node);
  void assign(const std::vector<std::string>& names, const Value& value, int line);
  void define_macro(const Node& node);
  Value make_macro(const Node& node, const std::shared_ptr<Scope>& scope);
  std::string captured(const std::vector<NodePointer>& nodes);
  /// Filters of a block, applied to its text.
  Value filtered(const Node& node, Value text);
  Value evaluate(const Node& node);
  Value evaluate_node(const Node& node);
  Value binary(const std::string& operation, const Value& left, const Value& right);
  bool compare(const std::string& operation, const Value& left, const Value& right);
  Value item(const Value& value, const Value& key);
  Value slice(const Value& value, const Value& from, const Value& to, const Value& step);
  Arguments arguments_of(const Node& node, size_t first);
  Value look_up(const std::string& name) const;
  void put(std::string_view text);

  ChatLimits limits_;
  uint64_t steps_ = 0, bytes_ = 0;
  int depth_ = 0;
  int line_ = 0;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  std::string* out_ = nullptr;
  /// Texts that are captured for a variable or a filter are none of the result yet.
  int captures_ = 0;
  std::vector<Span> generated_;
  List namespaces_;
};

/// The items that a for goes over: those of a list, the keys of a dict, the characters of a text.
List items_of(Interpreter& interpreter, const Value& value);
/// -1, 0, 1; an Error for what has no order.
int order_of(const Value& left, const Value& right);

}  // namespace levin::text::jinja
