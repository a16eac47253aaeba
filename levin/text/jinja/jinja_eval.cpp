#include <algorithm>
#include <cmath>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/jinja/jinja.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {

namespace {

using NodeKind = Node::Kind;

[[noreturn]] void fail_operation(const std::string& operation, const Value& left, const Value& right) {
  if (left.is_undefined()) ::levin::detail::fail("\"" + shown(left.undefined_name()) + "\" is not defined");
  if (right.is_undefined()) ::levin::detail::fail("\"" + shown(right.undefined_name()) + "\" is not defined");
  ::levin::detail::fail(
      ::levin::detail::concat("a ", left.type_name(), " ", operation, " a ", right.type_name(), " cannot be computed"));
}

int64_t checked(bool overflows, int64_t value) {
  LEVIN_CHECK(!overflows, "a number is too large");
  return value;
}

}  // namespace

void Interpreter::step(uint64_t count) {
  steps_ += count;
  LEVIN_CHECK(steps_ <= limits_.steps, "the template needs more than ", limits_.steps, " steps");
}

void Interpreter::charge(uint64_t bytes) {
  bytes_ += bytes;
  LEVIN_CHECK(bytes_ <= limits_.bytes, "the template makes more than ", limits_.bytes, " bytes of text");
}

void Interpreter::put(std::string_view text) {
  charge(text.size());
  *out_ += text;
}

std::string Interpreter::render(const Node& tree, Dict variables) {
  for (auto& [name, value] : variables) scope_->values[name.string()] = std::move(value);
  auto top = std::make_shared<Scope>();
  top->parent = scope_;
  scope_ = top;
  std::string out;
  out_ = &out;
  const auto end = [&] { scope_.reset(); };
  try {
    run(tree);
  } catch (const Error& error) {
    end();
    std::string what = error.what();
    if (what.starts_with("[chat template]")) throw;
    throw Error("[chat template] line " + std::to_string(line_) + ": " + what);
  } catch (...) {
    end();
    throw;
  }
  end();
  return out;
}

Interpreter::~Interpreter() {
  for (const auto& name_space : namespaces_) name_space.name_space().clear();
}

Value Interpreter::keep(Value name_space) {
  namespaces_.push_back(name_space);
  return name_space;
}

Value Interpreter::filtered(const Node& node, Value text) {
  if (node.kind == NodeKind::kLiteral) return text;
  LEVIN_CHECK(node.kind == NodeKind::kFilter, "a block takes filters alone");
  return apply_filter(*this, node.text, filtered(*node.parts[0], std::move(text)), arguments_of(node, 1));
}

Interpreter::Flow Interpreter::run_all(const std::vector<NodePointer>& nodes) {
  for (const auto& node : nodes) {
    if (const auto flow = run(*node); flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

std::string Interpreter::captured(const std::vector<NodePointer>& nodes) {
  std::string text;
  auto* const before = std::exchange(out_, &text);
  ++captures_;
  try {
    run_all(nodes);
  } catch (...) {
    out_ = before, --captures_;
    throw;
  }
  out_ = before, --captures_;
  return text;
}

Interpreter::Flow Interpreter::run(const Node& node) {
  step();
  line_ = node.line;
  switch (node.kind) {
    case NodeKind::kBlock:
      return run_all(node.parts);
    case NodeKind::kGeneration: {
      const auto begin = out_->size();
      const auto flow = run_all(node.parts);
      if (captures_ == 0 && out_->size() > begin)
        generated_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(out_->size())});
      return flow;
    }
    case NodeKind::kText:
      put(node.text);
      break;
    case NodeKind::kOutput:
      put(to_text(evaluate(*node.parts[0])));
      break;
    case NodeKind::kIf:
      if (evaluate(*node.parts[0]).truth()) return run(*node.parts[1]);
      if (!node.others.empty()) return run(*node.others[0]);
      break;
    case NodeKind::kFor:
      return run_for(node);
    case NodeKind::kSet: {
      auto value = evaluate(*node.parts[0]);
      if (node.text.empty()) {
        assign(node.names, value, node.line);
        break;
      }
      const auto target = look_up(node.names[0]);
      LEVIN_CHECK(target.is_namespace(), "\"", shown(node.names[0]), "\" is not a namespace, so that \"",
                  shown(node.text), "\" cannot be set");
      LEVIN_CHECK(!node.text.starts_with('_'), "a namespace has no \"", shown(node.text), "\"");
      auto& values = target.name_space();
      for (auto& [name, held] : values) {
        if (name.string() == node.text) {
          held = std::move(value);
          return Flow::kOn;
        }
      }
      values.emplace_back(Value(node.text), std::move(value));
      break;
    }
    case NodeKind::kSetBlock: {
      Value text(captured(node.parts));
      if (!node.others.empty()) text = filtered(*node.others[0], std::move(text));
      scope_->values[node.names[0]] = std::move(text);
      break;
    }
    case NodeKind::kMacro:
      define_macro(node);
      break;
    case NodeKind::kCall: {
      // The body is a macro that the called one knows as caller().
      const auto& invoked = *node.others[0];
      const auto function = evaluate(*invoked.parts[0]);
      auto arguments = arguments_of(invoked, 1);
      arguments.named.emplace_back("caller", make_macro(node, scope_));
      put(to_text(call(function, arguments)));
      break;
    }
    case NodeKind::kFilterBlock: {
      put(to_text(filtered(*node.others[0], Value(captured(node.parts)))));
      break;
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      ::levin::detail::fail("this is no statement");
  }
  return Flow::kOn;
}

void Interpreter::assign(const std::vector<std::string>& names, const Value& value, int line) {
  if (names.size() == 1) {
    scope_->values[names[0]] = value;
    return;
  }
  LEVIN_CHECK(value.is_list() && value.list().size() == names.size(), "line ", line, " needs ", names.size(),
              " values");
  for (size_t i = 0; i < names.size(); ++i) scope_->values[names[i]] = value.list()[i];
}

List items_of(Interpreter& interpreter, const Value& value) {
  List items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    items = value.list();
  } else if (value.is_dict()) {
    for (const auto& item : value.dict()) items.push_back(item.first);
  } else if (value.is_string()) {
    interpreter.charge(value.string().size() * 16);
    const auto& text = value.string();
    for (size_t at = 0; at < text.size(); at += utf8_length(text[at]))
      items.emplace_back(text.substr(at, utf8_length(text[at])));
  } else {
    ::levin::detail::fail(::levin::detail::concat("a ", value.type_name(), " has no items"));
  }
  interpreter.step(items.size());
  return items;
}

Interpreter::Flow Interpreter::run_for(const Node& node) {
  auto items = items_of(*this, evaluate(*node.parts[0]));
  const auto outer = scope_;
  const auto restore = [&] { scope_ = outer; };
  const auto enter = [&](const Value& item) {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    assign(node.names, item, node.line);
  };
  try {
    if (node.parts[1]) {
      List kept;
      for (auto& item : items) {
        enter(item);
        if (evaluate(*node.parts[1]).truth()) kept.push_back(item);
      }
      restore();
      items = std::move(kept);
    }
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      const auto& item = items[static_cast<size_t>(i)];
      enter(item);
      Dict loop{{Value("index"), Value(i + 1)},
                {Value("index0"), Value(i)},
                {Value("revindex"), Value(count - i)},
                {Value("revindex0"), Value(count - i - 1)},
                {Value("first"), Value(i == 0)},
                {Value("last"), Value(i + 1 == count)},
                {Value("length"), Value(count)},
                {Value("depth"), Value(1)},
                {Value("depth0"), Value(0)}};
      if (i > 0) loop.emplace_back(Value("previtem"), items[static_cast<size_t>(i - 1)]);
      if (i + 1 < count) loop.emplace_back(Value("nextitem"), items[static_cast<size_t>(i + 1)]);
      loop.emplace_back(Value("cycle"), Value::function([i](Interpreter&, const Arguments& arguments) -> Value {
                          LEVIN_CHECK(!arguments.positional.empty(), "cycle needs values");
                          return arguments.positional[static_cast<size_t>(i) % arguments.positional.size()];
                        }));
      scope_->values["loop"] = Value(std::move(loop));
      const auto flow = run(*node.parts[2]);
      if (flow == Flow::kBreak) break;
    }
  } catch (...) {
    restore();
    throw;
  }
  restore();
  if (items.empty() && !node.others.empty()) return run(*node.others[0]);
  return Flow::kOn;
}

Value Interpreter::make_macro(const Node& node, const std::shared_ptr<Scope>& scope) {
  const std::weak_ptr<Scope> held = scope;  // the scope holds the macro
  const Node* const macro = &node;
  return Value::function([held, macro](Interpreter& interpreter, const Arguments& arguments) -> Value {
    const auto outside = held.lock();
    LEVIN_CHECK(outside, "a macro is used outside of where it was defined");
    auto inner = std::make_shared<Scope>();
    inner->parent = outside;
    const auto& names = macro->names;
    const size_t first_default = macro->kind == NodeKind::kCall ? 1 : 0;
    const size_t defaults = macro->others.size() - first_default;
    LEVIN_CHECK(arguments.positional.size() <= names.size(), "a macro takes ", names.size(), " values, not ",
                arguments.positional.size());
    const auto before = std::exchange(interpreter.scope_, inner);
    Value result;
    try {
      for (size_t i = 0; i < names.size(); ++i) {
        Value value{Undefined{names[i]}};
        if (const auto* given = arguments.find(i, names[i]))
          value = *given;
        else if (i + defaults >= names.size())
          value = interpreter.evaluate(*macro->others[first_default + i + defaults - names.size()]);
        inner->values[names[i]] = std::move(value);
      }
      for (const auto& [name, value] : arguments.named) {
        const bool known = std::find(names.begin(), names.end(), name) != names.end() || name == "caller";
        LEVIN_CHECK(known, "a macro has no parameter \"", shown(name), "\"");
        if (name == "caller") inner->values[name] = value;
      }
      result = Value(interpreter.captured(macro->parts));
    } catch (...) {
      interpreter.scope_ = before;
      throw;
    }
    interpreter.scope_ = before;
    return result;
  });
}

void Interpreter::define_macro(const Node& node) {
  scope_->values[node.text] = make_macro(node, scope_);
}

Value Interpreter::look_up(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    const auto found = scope->values.find(name);
    if (found != scope->values.end()) return found->second;
  }
  return global_function(name);
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) ::levin::detail::fail("\"" + shown(function.undefined_name()) + "\" is not defined");
  LEVIN_CHECK(function.is_function(), "a ", function.type_name(), " cannot be called");
  step(10);
  LEVIN_CHECK(depth_ < limits_.depth, "calls are nested more than ", limits_.depth, " deep");
  ++depth_;
  const int line = line_;
  Value result = function.function()(*this, arguments);
  line_ = line;
  --depth_;
  return result;
}

Arguments Interpreter::arguments_of(const Node& node, size_t first) {
  Arguments arguments;
  for (size_t i = first; i < node.parts.size(); ++i) arguments.positional.push_back(evaluate(*node.parts[i]));
  for (size_t i = 0; i < node.others.size(); ++i)
    arguments.named.emplace_back(node.names[i], evaluate(*node.others[i]));
  return arguments;
}

Value Interpreter::evaluate(const Node& node) {
  step();
  line_ = node.line;
  return evaluate_node(node);
}

Value Interpreter::evaluate_node(const Node& node) {
  switch (node.kind) {
    case NodeKind::kLiteral:
      return node.value;
    case NodeKind::kName:
      return look_up(node.text);
    case NodeKind::kList:
    case NodeKind::kTuple: {
      List list;
      for (const auto& part : node.parts) list.push_back(evaluate(*part));
      charge(list.size() * 16);
      return node.kind == NodeKind::kTuple ? Value::tuple(std::move(list)) : Value(std::move(list));
    }
    case NodeKind::kDict: {
      Dict dict;
      for (size_t i = 0; i + 1 < node.parts.size(); i += 2) {
        auto key = evaluate(*node.parts[i]);
        auto value = evaluate(*node.parts[i + 1]);
        const auto same =
            std::find_if(dict.begin(), dict.end(), [&](const auto& item) { return item.first.equals(key); });
        if (same != dict.end())
          same->second = std::move(value);
        else
          dict.emplace_back(std::move(key), std::move(value));
      }
      charge(dict.size() * 32);
      return Value(std::move(dict));
    }
    case NodeKind::kAttribute: {
      const auto value = evaluate(*node.parts[0]);
      line_ = node.line;
      return attribute(value, node.text);
    }
    case NodeKind::kItem: {
      const auto value = evaluate(*node.parts[0]);
      const auto key = evaluate(*node.parts[1]);
      line_ = node.line;
      return item(value, key);
    }
    case NodeKind::kSlice: {
      const auto value = evaluate(*node.parts[0]);
      const auto bound = [&](size_t i) { return node.parts[i] ? evaluate(*node.parts[i]) : Value(); };
      return slice(value, bound(1), bound(2), bound(3));
    }
    case NodeKind::kInvoke: {
      const auto function = evaluate(*node.parts[0]);
      const auto arguments = arguments_of(node, 1);
      line_ = node.line;
      return call(function, arguments);
    }
    case NodeKind::kFilter: {
      const auto value = evaluate(*node.parts[0]);
      const auto arguments = arguments_of(node, 1);
      line_ = node.line;
      return apply_filter(*this, node.text, value, arguments);
    }
    case NodeKind::kTest: {
      const auto value = evaluate(*node.parts[0]);
      const auto arguments = arguments_of(node, 1);
      line_ = node.line;
      return Value(apply_test(*this, node.text, value, arguments));
    }
    case NodeKind::kNot:
      return Value(!evaluate(*node.parts[0]).truth());
    case NodeKind::kAnd: {
      auto left = evaluate(*node.parts[0]);
      return left.truth() ? evaluate(*node.parts[1]) : left;
    }
    case NodeKind::kOr: {
      auto left = evaluate(*node.parts[0]);
      return left.truth() ? left : evaluate(*node.parts[1]);
    }
    case NodeKind::kUnary: {
      const auto value = evaluate(*node.parts[0]);
      LEVIN_CHECK(value.is_number(), "a ", value.type_name(), " has no sign");
      if (value.is_float()) return Value(node.text == "-" ? -value.number() : value.number());
      return Value(node.text == "-" ? -value.integer() : value.integer());
    }
    case NodeKind::kBinary: {
      const auto left = evaluate(*node.parts[0]);
      const auto right = evaluate(*node.parts[1]);
      line_ = node.line;
      return binary(node.text, left, right);
    }
    case NodeKind::kCompare: {
      auto left = evaluate(*node.parts[0]);
      for (size_t i = 0; i < node.names.size(); ++i) {
        auto right = evaluate(*node.parts[i + 1]);
        if (!compare(node.names[i], left, right)) return Value(false);
        left = std::move(right);
      }
      return Value(true);
    }
    case NodeKind::kConditional:
      if (evaluate(*node.parts[0]).truth()) return evaluate(*node.parts[1]);
      return node.parts[2] ? evaluate(*node.parts[2]) : Value(Undefined{"the value of an if without else"});
    default:
      ::levin::detail::fail("this is no expression");
  }
}

Value Interpreter::binary(const std::string& operation, const Value& left, const Value& right) {
  if (operation == "~") {
    auto text = to_text(left) + to_text(right);
    charge(text.size());
    return Value(std::move(text));
  }
  if (operation == "+" && left.is_string() && right.is_string()) {
    charge(left.string().size() + right.string().size());
    return Value(left.string() + right.string());
  }
  if (operation == "+" && left.is_list() && right.is_list()) {
    auto list = left.list();
    list.insert(list.end(), right.list().begin(), right.list().end());
    charge(list.size() * 16);
    step(list.size());
    return Value(std::move(list));
  }
  if (operation == "*" && (left.is_string() || right.is_string()) && (left.is_int() || right.is_int())) {
    const auto& text = (left.is_string() ? left : right).string();
    const auto count = std::max<int64_t>(0, (left.is_string() ? right : left).integer());
    LEVIN_CHECK(text.empty() || static_cast<uint64_t>(count) <= limits_.bytes / text.size(), "a text is too long");
    charge(text.size() * static_cast<uint64_t>(count));
    std::string out;
    for (int64_t i = 0; i < (text.empty() ? 0 : count); ++i) out += text;
    return Value(std::move(out));
  }
  if (operation == "%" && left.is_string()) {
    Arguments arguments;
    arguments.positional = right.is_list() ? right.list() : List{right};
    return apply_filter(*this, "format", left, arguments);
  }
  if (!left.is_number() || !right.is_number()) fail_operation(operation, left, right);
  const bool whole = !left.is_float() && !right.is_float();
  const double a = left.number(), b = right.number();
  if (operation == "/" || operation == "//" || operation == "%") LEVIN_CHECK(b != 0, "a division by zero");
  if (operation == "/") return Value(a / b);
  if (whole && operation != "**") {
    const int64_t x = left.integer(), y = right.integer();
    int64_t out = 0;
    if (operation == "+") return Value(checked(__builtin_add_overflow(x, y, &out), out));
    if (operation == "-") return Value(checked(__builtin_sub_overflow(x, y, &out), out));
    if (operation == "*") return Value(checked(__builtin_mul_overflow(x, y, &out), out));
    LEVIN_CHECK(y != -1 || x != INT64_MIN, "a number is too large");
    const int64_t quotient = x / y - (x % y != 0 && (x % y < 0) != (y < 0));
    return Value(operation == "//" ? quotient : x - quotient * y);
  }
  if (operation == "+") return Value(a + b);
  if (operation == "-") return Value(a - b);
  if (operation == "*") return Value(a * b);
  if (operation == "//") return Value(std::floor(a / b));
  if (operation == "%") return Value(a - b * std::floor(a / b));
  const double power = std::pow(a, b);
  if (whole && b >= 0) {
    LEVIN_CHECK(std::abs(power) < 9e15, "a number is too large");
    return Value(static_cast<int64_t>(power));
  }
  return Value(power);
}

bool Interpreter::compare(const std::string& operation, const Value& left, const Value& right) {
  if (operation == "==") return left.equals(right);
  if (operation == "!=") return !left.equals(right);
  if (operation == "in" || operation == "not in") {
    bool found = false;
    if (right.is_string()) {
      if (!left.is_string()) fail_operation(operation, left, right);
      step(right.string().size() / 64);
      found = right.string().find(left.string()) != std::string::npos;
    } else if (right.is_dict()) {
      step(right.dict().size());
      found = Value::find(right.dict(), left) != nullptr;
    } else if (right.is_list()) {
      step(right.list().size());
      found = std::any_of(right.list().begin(), right.list().end(), [&](const Value& one) { return one.equals(left); });
    } else if (!right.is_undefined()) {
      fail_operation(operation, left, right);
    }
    return found == (operation == "in");
  }
  if (left.is_undefined() || right.is_undefined()) fail_operation(operation, left, right);
  const int order = order_of(left, right);
  if (operation == "<") return order < 0;
  if (operation == "<=") return order <= 0;
  return operation == ">" ? order > 0 : order >= 0;
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) ::levin::detail::fail("\"" + shown(value.undefined_name()) + "\" is not defined");
  if (value.is_dict()) {
    step(value.dict().size() / 8);
    if (const auto* found = Value::find(value.dict(), key)) return *found;
    return key.is_string() ? attribute(value, key.string()) : Value(Undefined{to_text(key)});
  }
  if (key.is_int() && (value.is_list() || value.is_string())) {
    auto index = key.integer();
    if (value.is_list()) {
      const auto size = static_cast<int64_t>(value.list().size());
      if (index < 0) index += size;
      return index >= 0 && index < size ? value.list()[static_cast<size_t>(index)]
                                        : Value(Undefined{"an item of a list"});
    }
    step(value.string().size() / 8);
    const auto points = to_points(value.string());
    if (index < 0) index += static_cast<int64_t>(points.size());
    if (index < 0 || index >= static_cast<int64_t>(points.size())) return Value(Undefined{"a character of a text"});
    return Value(to_utf8(points[static_cast<size_t>(index)]));
  }
  return key.is_string() ? attribute(value, key.string()) : Value(Undefined{to_text(key)});
}

Value Interpreter::slice(const Value& value, const Value& from, const Value& to, const Value& by) {
  if (value.is_undefined()) ::levin::detail::fail("\"" + shown(value.undefined_name()) + "\" is not defined");
  LEVIN_CHECK(value.is_list() || value.is_string(), "a ", value.type_name(), " has no slices");
  for (const auto* bound : {&from, &to, &by})
    LEVIN_CHECK(bound->is_none() || bound->is_int(), "a slice needs whole numbers");
  const auto items = items_of(*this, value);
  const auto size = static_cast<int64_t>(items.size());
  const int64_t stride = by.is_none() ? 1 : by.integer();
  LEVIN_CHECK(stride != 0, "a slice has the step 0");
  const auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    auto at = bound.integer();
    if (at < 0) at = at < -size ? -1 - size : at;
    if (at < 0) at += size;
    return stride > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const auto begin = clamp(from, stride > 0 ? 0 : size - 1), end = clamp(to, stride > 0 ? size : -1);
  List kept;
  // The step is at most the size, so that it cannot overflow.
  const auto move = std::clamp<int64_t>(stride, -size - 1, size + 1);
  for (auto at = begin; stride > 0 ? at < end : at > end; at += move) kept.push_back(items[static_cast<size_t>(at)]);
  if (value.is_list()) return Value(std::move(kept));
  std::string text;
  for (const auto& part : kept) text += part.string();
  charge(text.size());
  return Value(std::move(text));
}

}  // namespace levin::text::jinja
