#include "levin/cli/completion.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

using config::Field;

std::string identifier(std::string name) {
  for (auto& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

bool is_path(const Field& field) {
  return field.name == "ckpt_path" || field.type == "PATH" || field.type == "FILE" || field.type == "FOLDER";
}

/// What may follow each flag: files, known words, or anything.
class FlagValues {
 public:
  void add(const std::string& flag, const Field& field) {
    if (!known_.insert(flag).second) return;
    if (is_path(field))
      files_.push_back(flag);
    else if (!field.words.empty())
      words_[flag] = join(field.words, " ");
    else if (field.is_bool)
      words_[flag] = "true false";
    else
      free_.push_back(flag);
  }

  /// A case over the previous word, which sets `words` or ends.
  std::string text(const std::string& indent) const {
    if (known_.empty()) return {};
    auto out = indent + "case $prev in\n";
    if (!files_.empty())
      out += fmt::format("{}  {}) COMPREPLY=($(compgen -P \"$start\" -f -- \"$cur\")); return ;;\n", indent,
                         join(files_, "|"));
    for (const auto& [flag, words] : words_) out += fmt::format("{}  {}) words=\"{}\" ;;\n", indent, flag, words);
    if (!free_.empty()) out += fmt::format("{}  {}) [[ $cur == -- ]] || return ;;\n", indent, join(free_, "|"));
    return out + indent + "esac\n";
  }

 private:
  std::vector<std::string> files_, free_;
  std::map<std::string, std::string> words_;
  std::set<std::string> known_;
};

/// A command with arguments and flags of its own.
std::string command_text(const Completion::Command& command) {
  FlagValues values;
  std::string flags = "--help";
  for (const auto& field : command.flags) {
    const auto flag = "--" + field.name;
    flags += " " + flag;
    if (!field.is_bool) values.add(flag, field);
  }
  auto out = fmt::format("    {})\n{}      flags=\"{}\"\n", command.name, values.text("      "), flags);
  if (command.arguments.empty()) return out + "      ;;\n";
  // Arguments are known by their position, which holds as long as no flag stands before them.
  out += "      if [[ -z $words && $cur != -* ]]; then\n        case $COMP_CWORD in\n";
  for (size_t i = 0; i < command.arguments.size(); ++i)
    if (!command.arguments[i].empty())
      out += fmt::format("          {}) words=\"{}\" ;;\n", i + 2, join(command.arguments[i], " "));
  return out + "          *) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n        esac\n      fi\n      ;;\n";
}

/// The fields of the recipes, as flags of the commands that take them.
class FieldFlags {
 public:
  explicit FieldFlags(const std::vector<Completion::Recipe>& recipes) {
    for (const auto& recipe : recipes) {
      if (!recipe.name.empty()) names_.push_back(recipe.name);
      for (const auto& field : recipe.fields) add(recipe.name, field);
    }
    values_.add("--help",
                {.name = "help", .help = "", .words = {"trainer", "model", "data", "optimizer", "lr_scheduler"}});
    for (const char* flag : {"--config", "-c"}) values_.add(flag, {.name = "config", .help = "", .type = "PATH"});
  }

  std::string text(const std::vector<std::string>& commands) const {
    auto out = fmt::format("    {})\n{}", join(commands, "|"), values_.text("      "));
    out += fmt::format("      flags=\"--config --print-config --help{}\"\n", shared_);
    if (!names_.empty())
      out +=
          fmt::format("      if ((COMP_CWORD == 2)) && [[ $cur != -* ]]; then words=\"{}\"; fi\n", join(names_, " "));
    if (!own_.empty()) {
      out += "      case ${COMP_WORDS[2]} in\n";
      for (const auto& [recipe, flags] : own_) out += fmt::format("        {}) flags+=\"{}\" ;;\n", recipe, flags);
      out += "      esac\n";
    }
    out += "      for ((i = 2; i < COMP_CWORD; i++)); do\n        case \"${COMP_WORDS[i-1]} ${COMP_WORDS[i]}\" in\n";
    for (const auto& [choice, flags] : classes_)
      out += fmt::format("          \"{}\") flags+=\"{}\" ;;\n", choice, flags);
    return out + "        esac\n      done\n      ;;\n";
  }

 private:
  void add(const std::string& recipe, const Field& field) {
    const auto flag = "--" + field.name;
    const bool is_own = !recipe.empty() && (field.name.starts_with("model.") || field.name.starts_with("data."));
    if (field.name == "recipe") return;
    if (is_own)
      own_[recipe] += " " + flag;
    else if (seen_.insert(flag).second)
      shared_ += " " + flag;
    values_.add(flag, field);
    if (!field.classes) return;
    for (const auto& one : *field.classes) {
      auto& flags = classes_[flag + " " + one.name];
      if (!flags.empty()) continue;
      const auto options = one.options();
      for (const auto& option : options.fields()) {
        flags += fmt::format(" {}.{}", flag, option.name);
        values_.add(flag + "." + option.name, option);
      }
    }
  }

  FlagValues values_;
  std::string shared_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> own_, classes_;
  std::set<std::string> seen_;
};

std::string bash_script(const Completion& it) {
  const auto function = fmt::format("_{}_complete", identifier(it.program));
  std::vector<std::string> names, with_fields;
  for (const auto& command : it.commands) {
    names.push_back(command.name);
    if (command.takes_fields) with_fields.push_back(command.name);
  }
  auto out = function +
             "() {\n"
             "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= flags= start= i\n"
             "  COMPREPLY=()\n"
             "  if [[ $cur == = ]]; then cur=\n"  // bash takes the sign for a word of its own
             "  elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}\n"
             "  elif [[ $cur == --*=* ]]; then prev=${cur%%=*}; start=$prev=; cur=${cur#*=}; fi\n";
  out += fmt::format("  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return; fi\n",
                     join(names, " "));
  out += "  case ${COMP_WORDS[1]} in\n";
  if (!with_fields.empty()) out += FieldFlags(it.recipes).text(with_fields);
  for (const auto& command : it.commands)
    if (!command.takes_fields) out += command_text(command);
  out += "    *) return ;;\n  esac\n";
  out += "  COMPREPLY=($(compgen -P \"$start\" -W \"${words:-$flags}\" -- \"$cur\"))\n}\n";
  return out + fmt::format("complete -F {} {}\n", function, it.program);
}

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> shells{"bash", "zsh"};
  return shells;
}

std::string completion_usage(std::string_view program) {
  return fmt::format(
      "  source <({0} completion bash)     in ~/.bashrc\n  source <({0} completion zsh)      in ~/.zshrc\n", program);
}

std::string completion_script(const Completion& completion, const std::string& shell) {
  const auto& shells = completion_shells();
  if (std::find(shells.begin(), shells.end(), shell) == shells.end())
    fail_unknown(completion.program + " completion", "shell", shell, shells);
  const auto script = bash_script(completion);
  return shell == "bash" ? script : "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" + script;
}

}  // namespace levin::cli
