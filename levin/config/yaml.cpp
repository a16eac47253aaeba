#include "levin/config/yaml.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin::config {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 20'000;

size_t count_of(const Node& node) {
  size_t count = 1;
  for (const auto& item : node.items) count += count_of(item);
  for (const auto& [name, value] : node.entries) count += count_of(value);
  return count;
}

/// Builds the tree from the parser's events, so that limits hold while it grows and not afterwards.
class Builder final : public YAML::EventHandler {
 public:
  Builder(const std::string& name, std::string_view operation) : name_(name), operation_(operation) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { put(Node(), mark, anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "an alias names a value that is not complete yet");
    auto copy = found->second;
    values_ += count_of(copy) - 1;
    put(std::move(copy), mark, 0, /*keeps_origin=*/true);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    const bool plain = tag == "?" || tag.empty();
    if (plain && (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL"))
      put(Node(), mark, anchor);
    else
      put(Node::of_text(value, !plain), mark, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  Node take() { return std::move(root_); }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    throw Error(fmt::format("[{}] {}:{}: {}", operation_, name_, mark.line + 1, what));
  }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor;
    YAML::Mark mark;
    std::string key = {};
    bool has_key = false;
    std::vector<Node> merges = {};
  };

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag != "?" && tag != "!" && !tag.empty())
      fail(mark, fmt::format("the tag \"{}\" is not allowed in a config; write plain values", tag));
  }

  Origin here(const YAML::Mark& mark) const {
    return {.layer = Layer::kFile, .where = fmt::format("{}:{}", name_, mark.line + 1)};
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Node::Kind kind) {
    check_tag(mark, tag);
    if (!open_.empty() && open_.back().node.is_map() && !open_.back().has_key)
      fail(mark, "a key must be a word, not a list or a map");
    if (open_.size() >= kMaxDepth) fail(mark, fmt::format("deeper than {} levels, which no config is", kMaxDepth));
    Node node;
    node.kind = kind;
    open_.push_back({std::move(node), anchor, mark});
  }

  void close() {
    auto done = std::move(open_.back());
    open_.pop_back();
    for (const auto& from : done.merges) merge(done.node, from);
    put(std::move(done.node), done.mark, done.anchor);
  }

  void put(Node node, const YAML::Mark& mark, YAML::anchor_t anchor, bool keeps_origin = false) {
    if (++values_ > kMaxValues) fail(mark, fmt::format("more than {} values, which no config has", kMaxValues));
    if (!keeps_origin) node.origin = here(mark);
    if (anchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    auto& parent = open_.back();
    if (parent.node.is_list()) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      if (!node.is_text()) fail(mark, "a key must be a word");
      // The same key with a dash in place of an underscore is the same key.
      std::replace(node.text.begin(), node.text.end(), '-', '_');
      if (parent.node.find(node.text)) fail(mark, fmt::format("the key \"{}\" stands twice", node.text));
      parent.key = std::move(node.text);
      parent.has_key = true;
    } else {
      parent.has_key = false;
      if (parent.key != "<<")
        parent.node[parent.key] = std::move(node);
      else if (node.is_map() || node.is_list())
        parent.merges.push_back(std::move(node));
      else
        fail(mark, "\"<<\" needs a map");
    }
  }

  /// What stands in the map itself wins over what a merge key brings.
  void merge(Node& into, const Node& from) const {
    for (const auto& item : from.items) merge(into, item);
    for (const auto& [name, value] : from.entries)
      if (!into.find(name)) into[name] = value;
  }

  const std::string& name_;
  std::string_view operation_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
  Node root_;
  size_t values_ = 0;
};

/// What YAML readers take for something else than a text.
bool looks_typed(std::string_view text) {
  static constexpr std::array words{"true", "false", "yes", "no",   "on",   "off", "y",
                                    "n",    "null",  "~",   "none", ".inf", ".nan"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.empty() || std::find(words.begin(), words.end(), lower) != words.end()) return true;
  return std::isdigit(static_cast<unsigned char>(lower[0])) ||
         (lower.size() > 1 && (lower[0] == '-' || lower[0] == '+' || lower[0] == '.'));
}

bool is_plain(std::string_view text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  const auto is_word = [](unsigned char c) { return std::isalnum(c) || c >= 0x80; };
  for (const unsigned char c : text)
    if (!is_word(c) && std::string_view("_./+-=@%<>()~: ").find(static_cast<char>(c)) == std::string_view::npos)
      return false;
  // "a: b" is a map, and only few signs may come first.
  return text.find(": ") == std::string_view::npos &&
         (is_word(text.front()) || std::string_view("_./+~(").find(text.front()) != std::string_view::npos ||
          (text.front() == '-' && text.size() > 1 && is_word(text[1])));
}

/// Whether a tab stands before the first word of a line, which is counted from 0.
bool has_tab_indentation(std::string_view text, int line) {
  for (; line > 0 && !text.empty(); --line) {
    const auto end = text.find('\n');
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return line == 0 && text.substr(0, text.find_first_not_of(" \t")).find('\t') != text.npos;
}

}  // namespace

/// What yaml-cpp's words mean in a config; its own words where they are not among the common ones.
std::string plain_words(const std::string& reason) {
  static const std::map<std::string, std::string> words{
      {"illegal map value", "a second \": \" in a line, or an entry that is indented more than the ones beside it"},
      {"illegal map key", "a key where none can stand: write each \"name: value\" on a line of its own"},
      {"illegal block entry", "a \"- \" where no list can stand: begin the list on the line below its key"},
      {"end of map not found", "an entry that fits no level of indentation above it, or a \"{\" without its \"}\""},
      {"end of map flow not found", "a \"{\" without its \"}\""},
      {"end of sequence not found", "an entry that fits no list above it, or a \"[\" without its \"]\""},
      {"end of sequence flow not found", "a \"[\" without its \"]\""},
      {"unknown escape character: ", "a backslash in double quotes begins an escape; take single quotes"}};
  for (const auto& [yaml, plain] : words)
    if (reason.starts_with(yaml)) return plain + " (the YAML parser says: " + reason + ")";
  return "not YAML: " + reason;
}

Node parse_yaml(std::string_view text, const std::string& name, std::string_view operation) {
  LEVIN_CHECK(text.size() <= kMaxBytes, "[", operation, "] ", name, " has ", text.size(),
              " bytes; a config has at most ", kMaxBytes);
  Builder builder(name, operation);
  std::istringstream in{std::string(text)};
  try {
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    Builder second(name, operation);
    if (parser.HandleNextDocument(second))
      throw Error(fmt::format("[{}] {} has more than one document (\"---\"); one is allowed", operation, name));
  } catch (const YAML::Exception& error) {
    if (has_tab_indentation(text, error.mark.line))
      builder.fail(error.mark, "a tab indents this line, and YAML takes spaces only; write two spaces for each level");
    builder.fail(error.mark, plain_words(error.msg));
  }
  return builder.take();
}

Node read_yaml(const std::filesystem::path& path, std::string_view operation) {
  std::string text;
  try {
    text = read_file(path, kMaxBytes);
  } catch (const Error& error) {
    const std::string line = error.what();
    const auto end = line.find("] ");
    throw Error(fmt::format("[{}] {}", operation, end == std::string::npos ? line : line.substr(end + 2)));
  }
  return parse_yaml(text, path.string(), operation);
}

std::string yaml_scalar(std::string_view text, bool quoted) {
  if (is_plain(text) && !(quoted && looks_typed(text)) && text != "~" && text != "null") return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace levin::config
