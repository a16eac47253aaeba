#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/config/fields.h"
#include "levin/config/node.h"

namespace levin::config {

/// Fields that belong together, for the help: those whose name starts with "name.", or is it.
struct Group {
  std::string name;
  std::string title;
};

/// What the words of a command line ask for besides values.
struct Asked {
  bool help = false;
  /// `--help trainer`: only that group, class or field; empty: everything.
  std::string help_about = {};
  bool print_config = false;
};

/// Everything that can be said about a run, and who said it: defaults, then a recipe, files in their order, variables
/// of the environment, and flags. A value is read into the variable of its field as soon as it is added, so a later
/// layer wins; what is unknown or cannot be read is an Error of one line that names the place.
///
///     Options options;
///     std::vector<Field> fields;
///     add_fields(fields, options, "model.");
///     Config config("app", std::move(fields), {{"model", "The model"}});
///     const auto asked = config.add_arguments({"--config", "run.yaml", "--model.lr", "0.1"});
///     config.finish();
class Config {
 public:
  /// `operation` stands in front of errors.
  Config(std::string operation, std::vector<Field> fields, std::vector<Group> groups);

  /// YAML text under all files; `name` stands for it in errors.
  void add_recipe(std::string_view yaml, const std::string& name);
  void add_file(const std::filesystem::path& path);
  /// Variables such as LEVIN_TRAINER_MAX_EPOCHS for the fields of a group; one that starts so and names no field is an
  /// Error. `environment` is a list of NAME=VALUE.
  void add_environment(const std::string& prefix, const std::string& group, std::span<const std::string> environment);
  /// `--name value`, `--name=value`; dashes and underscores are the same. Files named by --config come first, then
  /// `before_flags` is called, then the flags count.
  Asked add_arguments(const std::vector<std::string>& words, const std::function<void()>& before_flags = {});
  /// Reads what was chosen by name, with its options: they depend on each other, so it waits until all is said.
  void finish();

  /// All fields with their values as YAML, which read back gives the same; each with its help, and who set it.
  std::string to_yaml(const std::string& header = {}) const;
  /// The same for one part, without comments: for hyperparameters.
  Node values(std::string_view group) const;
  /// For people, in 80 columns; `about` narrows it to a group, a class or a field, and is refused when it is neither.
  std::string help(std::string_view about = {}) const;

  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::string& operation() const { return operation_; }
  /// Who set a field last.
  const Origin& origin(std::string_view name) const;

 private:
  size_t index_of(std::string_view name) const;  // fields_.size() when there is none
  void add_tree(const Node& tree, const std::string& path);
  void assign(size_t index, const Node& node);
  void assign_class(size_t index, const Node& node, bool append = false);
  void assign_option(size_t index, const std::string& option, Node node);
  void add_flag(const std::string& word, std::string name, const std::string* value);
  std::vector<Chosen> read_chosen(const Field& field, const Node& node) const;
  Chosen read_one(const Field& field, const Node& node) const;
  void write_classes(std::string& out, size_t index, int indent) const;

  [[noreturn]] void fail_value(const Field& field, const std::string& key, const Node& node,
                               const std::string& problem) const;
  [[noreturn]] void fail_unknown_key(const std::string& what, const std::string& key, const Origin& origin,
                                     const std::vector<std::string>& known) const;
  void read_value(const Field& field, const std::string& key, const Node& node) const;

  std::string operation_;
  std::vector<Field> fields_;
  std::vector<Group> groups_;
  std::vector<Origin> origins_;
  /// For fields that choose classes: what was said so far.
  std::vector<Node> said_;
  int files_ = 0;
};

/// The environment of this process, as NAME=VALUE.
std::vector<std::string> environment_words();

namespace detail {
/// Breaks text into lines of at most `width`.
std::vector<std::string> wrap(std::string_view text, size_t width);
/// Name and help side by side, in 80 columns.
std::string help_line(std::string_view left, std::string_view text);
}  // namespace detail

}  // namespace levin::config
