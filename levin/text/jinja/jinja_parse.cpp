#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/jinja/jinja.h"
#include "levin/text/jinja/jinja_lex.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {

namespace {

constexpr int kMaxTreeDepth = 120;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  NodePointer parse() {
    auto tree = make(Node::Kind::kBlock);
    block(*tree, {});
    return finished(std::move(tree));
  }

 private:
  using Kind = Node::Kind;

  const Token& now() const { return tokens_[at_]; }
  bool is_name(std::string_view word) const { return now().kind == Token::Kind::kName && now().text == word; }
  bool is_operator(std::string_view text) const { return now().kind == Token::Kind::kOperator && now().text == text; }
  bool take_name(std::string_view word) { return is_name(word) && ++at_; }
  bool take_operator(std::string_view text) { return is_operator(text) && ++at_; }
  [[noreturn]] void fail(const std::string& what) const { fail_at(now().line, what); }
  void need_operator(std::string_view text) {
    if (!take_operator(text)) fail(std::string(text) + " is missing" + seen());
  }
  std::string seen() const { return now().text.empty() ? "" : " before \"" + shown(now().text) + "\""; }
  std::string name() {
    if (now().kind != Token::Kind::kName) fail("a name is missing" + seen());
    return tokens_[at_++].text;
  }
  void end_block() {
    if (now().kind != Token::Kind::kBlockEnd) fail("%} is missing" + seen());
    ++at_;
  }

  NodePointer make(Kind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = now().line;
    return node;
  }
  // Sets the depth of a node, and refuses one that would cost too much stack.
  static NodePointer finished(NodePointer node) {
    for (const auto* list : {&node->parts, &node->others}) {
      for (const auto& part : *list) {
        if (part) node->depth = std::max(node->depth, part->depth + 1);
      }
    }
    if (node->depth > kMaxTreeDepth) fail_at(node->line, "the template is nested too deeply");
    return node;
  }

  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxTreeDepth) parser_.fail("the template is nested too deeply");
    }
    ~Nested() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  // Statements up to one of the ends, whose name is taken and returned. The tag's own end is not.
  std::string block(Node& into, const std::vector<std::string_view>& ends) {
    const Nested nested(*this);
    const int line = now().line;
    for (;;) {
      switch (now().kind) {
        case Token::Kind::kEnd:
          if (!ends.empty()) fail_at(line, std::string(ends.back()) + " is missing");
          return "";
        case Token::Kind::kText: {
          auto node = make(Kind::kText);
          node->text = now().text;
          ++at_;
          into.parts.push_back(std::move(node));
          break;
        }
        case Token::Kind::kOutputBegin: {
          ++at_;
          auto node = make(Kind::kOutput);
          node->parts.push_back(tuple());
          if (now().kind != Token::Kind::kOutputEnd) fail("}} is missing" + seen());
          ++at_;
          into.parts.push_back(finished(std::move(node)));
          break;
        }
        case Token::Kind::kBlockBegin: {
          ++at_;
          for (const auto end : ends) {
            if (take_name(end)) return std::string(end);
          }
          if (auto node = statement()) into.parts.push_back(finished(std::move(node)));
          break;
        }
        default:
          fail("this cannot stand here" + seen());
      }
    }
  }

  // The body of a block statement up to its one end.
  void body(Node& node, std::string_view end) {
    end_block();
    block(node, {end});
    if (end == "endmacro" && now().kind == Token::Kind::kName) ++at_;
    end_block();
  }

  NodePointer statement() {
    const int line = now().line;
    const auto word = name();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro_statement();
    if (word == "call") {
      auto node = make(Kind::kCall);
      if (is_operator("(")) parameters(*node);
      node->others.insert(node->others.begin(), expression());
      if (node->others[0]->kind != Kind::kInvoke) fail_at(line, "call needs a call");
      body(*node, "endcall");
      return node;
    }
    if (word == "filter") {
      auto node = make(Kind::kFilterBlock);
      auto inner = make(Kind::kLiteral);
      node->others.push_back(filters(std::move(inner), true));
      body(*node, "endfilter");
      return node;
    }
    if (word == "generation") {
      auto node = make(Kind::kGeneration);
      body(*node, "endgeneration");
      return node;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail_at(line, word + " outside of a for");
      auto node = make(word == "break" ? Kind::kBreak : Kind::kContinue);
      end_block();
      return node;
    }
    fail_at(line, "the statement \"" + shown(word) + "\" is not known");
  }

  NodePointer if_statement() {
    auto node = make(Kind::kIf);
    node->parts.push_back(expression());
    end_block();
    auto then = make(Kind::kBlock);
    const auto end = block(*then, {"elif", "else", "endif"});
    node->parts.push_back(finished(std::move(then)));
    if (end == "elif") {
      const Nested nested(*this);
      node->others.push_back(finished(if_statement()));
      return node;
    }
    if (end == "else") {
      end_block();
      auto other = make(Kind::kBlock);
      block(*other, {"endif"});
      node->others.push_back(finished(std::move(other)));
    }
    end_block();
    return node;
  }

  NodePointer for_statement() {
    auto node = make(Kind::kFor);
    node->names = targets();
    if (!take_name("in")) fail("in is missing" + seen());
    node->parts.push_back(or_expression_or_tuple());
    if (take_name("if"))
      node->parts.push_back(expression());
    else
      node->parts.push_back(nullptr);
    if (take_name("recursive")) fail("a recursive for is not known");
    end_block();
    ++loops_;
    auto inner = make(Kind::kBlock);
    const auto end = block(*inner, {"else", "endfor"});
    --loops_;
    node->parts.push_back(finished(std::move(inner)));
    if (end == "else") {
      end_block();
      auto other = make(Kind::kBlock);
      block(*other, {"endfor"});
      node->others.push_back(finished(std::move(other)));
    }
    end_block();
    return node;
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool bracket = take_operator("(");
    names.push_back(name());
    while (take_operator(",")) names.push_back(name());
    if (bracket) need_operator(")");
    return names;
  }

  NodePointer set_statement() {
    auto node = make(Kind::kSet);
    node->names = targets();
    if (node->names.size() == 1 && take_operator(".")) node->text = name();  // of a namespace
    if (take_operator("=")) {
      node->parts.push_back(tuple());
      end_block();
      return node;
    }
    if (node->names.size() != 1) fail("= is missing" + seen());
    node->kind = Kind::kSetBlock;
    if (is_operator("|")) {
      auto inner = make(Kind::kLiteral);
      node->others.push_back(filters(std::move(inner), false));
    }
    body(*node, "endset");
    return node;
  }

  // (a, b=1): names, and in `others` the defaults of the last ones.
  void parameters(Node& node) {
    need_operator("(");
    while (!take_operator(")")) {
      node.names.push_back(name());
      if (take_operator("="))
        node.others.push_back(expression());
      else if (!node.others.empty())
        fail("a parameter without a default follows one that has one");
      if (!is_operator(")")) need_operator(",");
    }
  }

  NodePointer macro_statement() {
    auto node = make(Kind::kMacro);
    node->text = name();
    parameters(*node);
    const int loops = std::exchange(loops_, 0);
    body(*node, "endmacro");
    loops_ = loops;
    return node;
  }

  // a, b, c is a tuple, as in Python.
  NodePointer tuple() {
    auto first = expression();
    if (!is_operator(",")) return first;
    auto node = make(Kind::kTuple);
    node->parts.push_back(std::move(first));
    while (take_operator(",")) {
      if (now().kind == Token::Kind::kBlockEnd || now().kind == Token::Kind::kOutputEnd || is_operator(")")) break;
      node->parts.push_back(expression());
    }
    return finished(std::move(node));
  }

  // The list of a for, after which an if is its filter.
  NodePointer or_expression_or_tuple() {
    auto first = or_expression();
    if (!is_operator(",")) return first;
    auto node = make(Kind::kTuple);
    node->parts.push_back(std::move(first));
    while (take_operator(",")) node->parts.push_back(or_expression());
    return finished(std::move(node));
  }

  NodePointer expression() {
    const Nested nested(*this);
    auto node = or_expression();
    while (is_name("if")) {
      auto choice = make(Kind::kConditional);
      ++at_;
      choice->parts.push_back(or_expression());
      choice->parts.push_back(std::move(node));
      choice->parts.push_back(take_name("else") ? expression() : nullptr);
      node = finished(std::move(choice));
    }
    return node;
  }

  template <class Next>
  NodePointer joined(Kind kind, std::string_view word, Next next) {
    auto left = next();
    while (is_name(word)) {
      auto node = make(kind);
      ++at_;
      node->parts.push_back(std::move(left));
      node->parts.push_back(next());
      left = finished(std::move(node));
    }
    return left;
  }
  NodePointer or_expression() {
    return joined(Kind::kOr, "or", [&] { return joined(Kind::kAnd, "and", [&] { return not_expression(); }); });
  }

  NodePointer not_expression() {
    if (!is_name("not")) return comparison();
    const Nested nested(*this);
    auto node = make(Kind::kNot);
    ++at_;
    node->parts.push_back(not_expression());
    return finished(std::move(node));
  }

  NodePointer comparison() {
    auto left = sum();
    auto node = make(Kind::kCompare);
    for (;;) {
      std::string operation;
      for (const std::string_view text : {"==", "!=", "<", "<=", ">", ">="}) {
        if (is_operator(text)) operation = text;
      }
      if (!operation.empty()) {
        ++at_;
      } else if (take_name("in")) {
        operation = "in";
      } else if (is_name("not") && tokens_[at_ + 1].kind == Token::Kind::kName && tokens_[at_ + 1].text == "in") {
        at_ += 2;
        operation = "not in";
      } else {
        break;
      }
      if (node->parts.empty()) node->parts.push_back(std::move(left));
      node->names.push_back(operation);
      node->parts.push_back(sum());
    }
    return node->parts.empty() ? std::move(left) : finished(std::move(node));
  }

  template <class Next>
  NodePointer operations(std::initializer_list<std::string_view> all, Next next) {
    auto left = next();
    for (;;) {
      std::string operation;
      for (const auto text : all) {
        if (is_operator(text)) operation = text;
      }
      if (operation.empty()) return left;
      auto node = make(Kind::kBinary);
      ++at_;
      node->text = operation;
      node->parts.push_back(std::move(left));
      node->parts.push_back(next());
      left = finished(std::move(node));
    }
  }
  NodePointer sum() {
    return operations({"+", "-"}, [&] { return operations({"~"}, [&] { return product(); }); });
  }
  NodePointer product() {
    return operations({"*", "/", "//", "%"}, [&] { return operations({"**"}, [&] { return unary(true); }); });
  }

  NodePointer unary(bool with_filters) {
    const Nested nested(*this);
    NodePointer node;
    if (is_operator("-") || is_operator("+")) {
      node = make(Kind::kUnary);
      node->text = now().text;
      ++at_;
      node->parts.push_back(unary(false));
      node = finished(std::move(node));
    } else {
      node = primary();
    }
    node = postfix(std::move(node));
    return with_filters ? filters(std::move(node), false) : std::move(node);
  }

  NodePointer literal(Value value) {
    auto node = make(Kind::kLiteral);
    node->value = std::move(value);
    return node;
  }

  NodePointer primary() {
    const auto token = now();
    switch (token.kind) {
      case Token::Kind::kString: {
        std::string text;
        while (now().kind == Token::Kind::kString) text += tokens_[at_++].text;
        return literal(Value(std::move(text)));
      }
      case Token::Kind::kInt: {
        ++at_;
        if (token.text.size() > 18) fail_at(token.line, "a number that is too large");
        return literal(Value(static_cast<int64_t>(std::stoll(token.text))));
      }
      case Token::Kind::kFloat:
        ++at_;
        return literal(Value(std::strtod(token.text.c_str(), nullptr)));
      case Token::Kind::kName: {
        ++at_;
        if (token.text == "true" || token.text == "True") return literal(Value(true));
        if (token.text == "false" || token.text == "False") return literal(Value(false));
        if (token.text == "none" || token.text == "None") return literal(Value());
        auto node = make(Kind::kName);
        node->text = token.text;
        node->line = token.line;
        return node;
      }
      case Token::Kind::kOperator:
        if (take_operator("(")) {
          if (take_operator(")")) return make(Kind::kTuple);
          auto node = tuple();
          need_operator(")");
          return node;
        }
        if (take_operator("[")) {
          auto node = make(Kind::kList);
          while (!take_operator("]")) {
            node->parts.push_back(expression());
            if (!is_operator("]")) need_operator(",");
          }
          return finished(std::move(node));
        }
        if (take_operator("{")) {
          auto node = make(Kind::kDict);
          while (!take_operator("}")) {
            node->parts.push_back(expression());
            need_operator(":");
            node->parts.push_back(expression());
            if (!is_operator("}")) need_operator(",");
          }
          return finished(std::move(node));
        }
        [[fallthrough]];
      default:
        fail("an expression is missing" + seen());
    }
  }

  void arguments(Node& node) {
    while (!take_operator(")")) {
      if (is_operator("*") || is_operator("**")) fail("arguments from a list are not known");
      if (now().kind == Token::Kind::kName && tokens_[at_ + 1].kind == Token::Kind::kOperator &&
          tokens_[at_ + 1].text == "=") {
        node.names.push_back(name());
        ++at_;
        node.others.push_back(expression());
      } else {
        if (!node.others.empty()) fail("an argument without a name follows one with a name");
        node.parts.push_back(expression());
      }
      if (!is_operator(")")) need_operator(",");
    }
  }

  NodePointer subscript(NodePointer value) {
    auto node = make(Kind::kItem);
    node->parts.push_back(std::move(value));
    NodePointer first;
    if (!is_operator(":")) first = expression();
    if (is_operator("]")) {
      ++at_;
      node->parts.push_back(std::move(first));
      return finished(std::move(node));
    }
    node->kind = Kind::kSlice;
    node->parts.push_back(std::move(first));
    need_operator(":");
    node->parts.push_back(is_operator("]") || is_operator(":") ? nullptr : expression());
    node->parts.push_back(take_operator(":") && !is_operator("]") ? expression() : nullptr);
    need_operator("]");
    return finished(std::move(node));
  }

  NodePointer postfix(NodePointer value) {
    for (;;) {
      if (take_operator(".")) {
        auto node = make(Kind::kAttribute);
        node->parts.push_back(std::move(value));
        if (now().kind == Token::Kind::kInt) {  // a.0
          node->kind = Kind::kItem;
          node->parts.push_back(primary());
        } else {
          node->text = name();
        }
        value = finished(std::move(node));
      } else if (take_operator("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        value = call_of(std::move(value));
      } else {
        return value;
      }
    }
  }

  NodePointer call_of(NodePointer value) {
    auto node = make(Kind::kInvoke);
    need_operator("(");
    node->parts.push_back(std::move(value));
    arguments(*node);
    return finished(std::move(node));
  }

  // |filter and `is test`, any number of them. A filter block begins with the name of its first.
  NodePointer filters(NodePointer value, bool named) {
    for (bool first = named;; first = false) {
      if (first || take_operator("|")) {
        auto node = make(Kind::kFilter);
        node->text = name();
        if (!is_filter(node->text)) fail("the filter \"" + shown(node->text) + "\" is not known");
        node->parts.push_back(std::move(value));
        if (take_operator("(")) arguments(*node);
        value = finished(std::move(node));
      } else if (is_name("is")) {
        value = test(std::move(value));
      } else if (is_operator("(")) {
        value = call_of(std::move(value));
      } else {
        return value;
      }
    }
  }

  NodePointer test(NodePointer value) {
    auto node = make(Kind::kTest);
    ++at_;
    const bool negated = take_name("not");
    node->text = name();
    if (!is_test(node->text)) fail("the test \"" + shown(node->text) + "\" is not known");
    node->parts.push_back(std::move(value));
    if (take_operator("(")) {
      arguments(*node);
    } else {
      const auto kind = now().kind;
      const bool starts =
          kind == Token::Kind::kString || kind == Token::Kind::kInt || kind == Token::Kind::kFloat ||
          is_operator("[") || is_operator("{") ||
          (kind == Token::Kind::kName && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") &&
           !is_name("if") && !is_name("in") && !is_name("not") && !is_name("recursive"));
      if (starts) node->parts.push_back(postfix(primary()));
    }
    node = finished(std::move(node));
    if (!negated) return node;
    auto outer = make(Kind::kNot);
    outer->parts.push_back(std::move(node));
    return finished(std::move(outer));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

NodePointer parse_template(std::string_view source) {
  LEVIN_CHECK(source.size() <= (size_t{1} << 20), "[chat template] it has ", source.size(),
              " bytes; at most 1 MB is read");
  LEVIN_CHECK(valid_utf8(source), "[chat template] it is not UTF-8");
  return Parser(lex_template(source)).parse();
}

}  // namespace levin::text::jinja
