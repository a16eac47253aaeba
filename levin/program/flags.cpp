#include "levin/program/flags.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {

bool parse_flags(CLI::App& app, const std::vector<std::string>& words) {
  app.allow_extras();
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them last first
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ConversionError& error) {
    const std::string text = error.what();  // "Could not convert: --batch = many"
    throw Error(fmt::format("[{}] {} is not a number", app.get_name(), text.substr(text.find("--"))));
  } catch (const CLI::ParseError& error) {
    throw Error(fmt::format("[{}] {}", app.get_name(), error.what()));
  }
  for (const auto& word : app.remaining()) {
    LEVIN_CHECK(word.starts_with("-"), "[", app.get_name(), "] \"", word, "\" is one word too many");
    std::vector<std::string> known;
    for (const auto* option : app.get_options())
      for (const auto& name : option->get_lnames()) known.push_back("--" + name);
    fail_unknown(app.get_name(), "flag", word.substr(0, word.find('=')), known);
  }
  return true;
}

}  // namespace levin::cli
