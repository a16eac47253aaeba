#include "levin/cli/completion.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

using config::Field;

/// What may follow each flag, and the flags of each recipe and class.
class Script {
 public:
  explicit Script(const Completion& completion) : it_(completion) {
    for (const auto& recipe : it_.recipes)
      for (const auto& field : recipe.fields) add(recipe.name, field);
    values_["--help"] = "trainer model data optimizer lr_scheduler";
    files_ += "|--config|-c";
  }

  std::string text() const {
    const auto function = fmt::format("_{}_complete", identifier(it_.program));
    std::string out = function + "() {\n";
    out +=
        "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= flags= start= i\n"
        "  COMPREPLY=()\n"
        "  if [[ $cur == = ]]; then cur=\n"  // bash takes the sign for a word of its own
        "  elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}\n"
        "  elif [[ $cur == --*=* ]]; then prev=${cur%%=*}; start=$prev=; cur=${cur#*=}; fi\n";
    std::vector<std::string> commands = it_.train_commands;
    for (const auto& [name, words] : it_.other_commands) commands.push_back(name);
    out += fmt::format("  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return; fi\n",
                       join(commands, " "));
    out += "  case ${COMP_WORDS[1]} in\n";
    out += fmt::format("    {}) ;;\n", join(it_.train_commands, "|"));
    for (const auto& [name, words] : it_.other_commands)
      out += words.empty() ? fmt::format("    {}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", name)
                           : fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;\n", name,
                                         join(words, " "));
    out += "    *) return ;;\n  esac\n";
    out += "  case $prev in\n";
    out += fmt::format("    {}) COMPREPLY=($(compgen -P \"$start\" -f -- \"$cur\")); return ;;\n", files_.substr(1));
    for (const auto& [flag, words] : values_) out += fmt::format("    {}) words=\"{}\" ;;\n", flag, words);
    if (!free_.empty()) out += fmt::format("    {}) [[ $cur == -- ]] || return ;;\n", free_.substr(1));
    out += "  esac\n";
    out += "  if [[ -n $words ]]; then COMPREPLY=($(compgen -P \"$start\" -W \"$words\" -- \"$cur\")); return; fi\n";
    out += fmt::format("  flags=\"--config --print-config --help{}\"\n", shared_);
    if (!it_.recipes.empty() && !it_.recipes[0].name.empty()) {
      std::vector<std::string> names;
      for (const auto& recipe : it_.recipes) names.push_back(recipe.name);
      out += fmt::format(
          "  if ((COMP_CWORD == 2)) && [[ $cur != -* ]]; then COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return; "
          "fi\n",
          join(names, " "));
    }
    if (!own_.empty()) {
      out += "  case ${COMP_WORDS[2]} in\n";
      for (const auto& [recipe, flags] : own_) out += fmt::format("    {}) flags+=\"{}\" ;;\n", recipe, flags);
      out += "  esac\n";
    }
    out += "  for ((i = 2; i < COMP_CWORD; i++)); do\n    case \"${COMP_WORDS[i-1]} ${COMP_WORDS[i]}\" in\n";
    for (const auto& [choice, flags] : classes_) out += fmt::format("      \"{}\") flags+=\"{}\" ;;\n", choice, flags);
    out += "    esac\n  done\n";
    out += "  COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n}\n";
    return out + fmt::format("complete -F {} {}\n", function, it_.program);
  }

 private:
  static std::string identifier(std::string name) {
    for (auto& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return name;
  }

  void add(const std::string& recipe, const Field& field) {
    const auto flag = "--" + field.name;
    const bool is_own = !recipe.empty() && (field.name.starts_with("model.") || field.name.starts_with("data."));
    if (field.name == "recipe") return;
    if (is_own)
      own_[recipe] += " " + flag;
    else if (seen_.insert(flag).second)
      shared_ += " " + flag;
    add_values(flag, field);
    if (!field.classes) return;
    for (const auto& one : *field.classes) {
      auto& flags = classes_[flag + " " + one.name];
      if (!flags.empty()) continue;
      const auto options = one.options();
      for (const auto& option : options.fields()) {
        flags += fmt::format(" {}.{}", flag, option.name);
        add_values(flag + "." + option.name, option);
      }
    }
  }

  void add_values(const std::string& flag, const Field& field) {
    if (!known_.insert(flag).second) return;
    if (field.name == "ckpt_path" || field.type == "PATH")
      files_ += "|" + flag;
    else if (!field.words.empty())
      values_[flag] = join(field.words, " ");
    else if (field.is_bool)
      values_[flag] = "true false";
    else
      free_ += "|" + flag;
  }

  const Completion& it_;
  std::string shared_, files_, free_;
  std::map<std::string, std::string> own_, values_, classes_;
  std::set<std::string> seen_, known_;
};

}  // namespace

std::string completion_script(const Completion& completion, const std::vector<std::string>& words) {
  const std::vector<std::string> shells{"bash", "zsh"};
  const auto operation = completion.program + " completion";
  LEVIN_CHECK(!words.empty(), "[", operation, "] name a shell: bash or zsh, as in: source <(", operation, " bash)");
  if (words[0] == "--help" || words[0] == "-h")
    return fmt::format(
        "Writes a script that lets a shell complete commands, flags and their values.\n"
        "Usage: {0} bash|zsh\n\n  source <({0} bash)     in ~/.bashrc\n  source <({0} zsh)      in ~/.zshrc\n",
        operation);
  if (std::find(shells.begin(), shells.end(), words[0]) == shells.end())
    fail_unknown(operation, "shell", words[0], shells);
  const auto script = Script(completion).text();
  if (words[0] == "bash") return script;
  return "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" + script;
}

}  // namespace levin::cli
