// Tables of the pages list what the program has: every name of a registry is in its table, and nothing else is. The
// page for users of Lightning says "none" of nothing that is there.
#include <filesystem>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "levin/cli/callbacks.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/environments/environment.h"
#include "levin/generate/generation_config.h"
#include "levin/loggers/logger_names.h"
#include "levin/optim/registry.h"
#include "levin/precision/precision.h"
#include "levin/profilers/profiler.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/pipeline/schedule.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> page(const std::string& name) {
  return lines_of(read_file(fs::path(source_dir()) / name, 1 << 22));
}

/// What stands between the bars, without spaces around it.
std::vector<std::string> cells_of(const std::string& row) {
  static const std::regex cell(R"(\|\s*((?:\\\||[^|])*?)\s*(?=\|))");
  std::vector<std::string> cells;
  for (std::sregex_iterator at(row.begin(), row.end(), cell), end; at != end; ++at) cells.push_back((*at)[1]);
  return cells;
}

/// Rows below the line that begins with `header`; empty where the page has no such table.
std::vector<std::vector<std::string>> rows_of(const std::vector<std::string>& lines, const std::string& header) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with(header)) continue;
    for (size_t row = i + 2; row < lines.size() && lines[row].starts_with("|"); ++row)
      rows.push_back(cells_of(lines[row]));
    break;
  }
  return rows;
}

/// The code words of a cell: `a`, `a_b`. One that begins with "_" continues the first: `a`, `_2` is a, a_2. Options
/// behind a colon and quotes are no part of a name.
std::vector<std::string> code_words(const std::string& cell) {
  static const std::regex code("`([^`]+)`");
  std::vector<std::string> words;
  for (std::sregex_iterator at(cell.begin(), cell.end(), code), end; at != end; ++at) {
    std::string word = (*at)[1];
    if (word.starts_with("levin ")) word = word.substr(6);
    std::erase(word, '"');
    word = word.substr(0, word.find_first_of(" :("));
    words.push_back(word.starts_with("_") && !words.empty() ? words.front() + word : word);
  }
  return words;
}

/// The names in a column of a table.
Names names_in(const std::string& of_page, const std::string& header, size_t column = 0) {
  const auto rows = rows_of(page(of_page), header);
  EXPECT_FALSE(rows.empty()) << of_page << " has no table \"" << header << "\"";
  Names names;
  for (const auto& row : rows) {
    EXPECT_LT(column, row.size()) << of_page << ": " << header;
    if (column < row.size())
      for (const auto& word : code_words(row[column])) names.insert(word);
  }
  return names;
}

Names set_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

std::string missing(const Names& from, const Names& names) {
  std::vector<std::string> all;
  for (const auto& name : names)
    if (!from.contains(name)) all.push_back(name);
  return join(all);
}

void expect_same(const Names& on_page, const Names& in_program, const std::string& where) {
  EXPECT_EQ(missing(on_page, in_program), "") << where << " lacks what the program has";
  EXPECT_EQ(missing(in_program, on_page), "") << where << " names what the program does not have";
}

/// First words of the indented lines that a command prints, up to an empty line behind them.
Names listed_by(const std::vector<std::string>& words, const std::string& behind) {
  const auto result = run_program([&] {
    std::vector<std::string> command{levin_program()};
    command.insert(command.end(), words.begin(), words.end());
    return command;
  }());
  EXPECT_EQ(result.status, 0) << result.err;
  Names names;
  bool begun = behind.empty();
  for (const auto& line : lines_of(result.out)) {
    if (begun && line.empty() && !names.empty()) break;
    if (begun && !line.empty()) names.insert(line.substr(line.find_first_not_of(' ')).substr(0, line.find(' ', 2) - 2));
    begun = begun || line == behind;
  }
  return names;
}

TEST(Tables, FieldsOfGenerationConfig) {
  const auto rows = rows_of(page("docs/generation.md"), "| field | here |");
  const auto fields = generation_fields();
  ASSERT_EQ(rows.size(), fields.size());
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(rows[i], (std::vector<std::string>{"`" + std::string(fields[i].name) + "`", describe(fields[i])}));
}

TEST(Tables, CommandsAreThoseOfTheProgram) {
  expect_same(names_in("docs/cli.md", "| command | what it does |"), listed_by({"--help"}, "Commands:"), "docs/cli.md");
}

TEST(Tables, RecipesAreThoseOfTheProgram) {
  Names recipes;
  const auto listed = run_program({levin_program(), "recipes"});
  for (const auto& line : lines_of(listed.out)) {
    static const std::regex row(R"(^\s*([a-z0-9_]+)\s{2,}\S.*)");
    std::smatch match;
    if (std::regex_match(line, match, row)) recipes.insert(match[1]);
  }
  EXPECT_GE(recipes.size(), 12u) << listed.out;
  expect_same(names_in("docs/cli.md", "| recipe | model | data |"), recipes, "docs/cli.md");
}

TEST(Tables, StrategiesAreThoseOfTheProgram) {
  expect_same(names_in("docs/strategies.md", "| name | what it does |"), set_of(known_strategies()),
              "docs/strategies.md");
}

TEST(Tables, PipelineSchedulesAreThoseOfTheProgram) {
  expect_same(names_in("docs/parallelism.md", "| schedule | bubble |"), set_of(pipeline_schedule_names()),
              "docs/parallelism.md");
}

TEST(Tables, ProfilersAreThoseOfTheProgram) {
  expect_same(names_in("docs/profilers.md", "| name | what it tells |"), set_of(profiler_names()), "docs/profilers.md");
}

TEST(Tables, LoggersAreThoseOfTheProgram) {
  expect_same(names_in("docs/loggers.md", "| logger | name | writes |", 1), set_of(logger_names()), "docs/loggers.md");
}

TEST(Tables, EnvironmentsAreThoseOfTheProgram) {
  auto names = set_of(environment_names());
  names.erase("auto");
  expect_same(names_in("docs/environments.md", "| name | detected by |"), names, "docs/environments.md");
}

TEST(Tables, PrecisionsAreThoseOfTheProgram) {
  auto names = names_in("docs/precision.md", "| name | parameters |");
  names.merge(names_in("docs/precision.md", "| name | parameters |", 5));  // aliases
  expect_same(names, set_of(known_precisions()), "docs/precision.md");
}

TEST(Tables, OptimizersAreThoseOfTheProgram) {
  Names names;
  for (const auto& optimizer : optim::optimizer_classes()) names.insert(optimizer.name);
  expect_same(names_in("docs/optim.md", "| class | numbers of |"), names, "docs/optim.md");
}

TEST(Tables, CallbacksOfTheCommandLineAreOnAPage) {
  auto on_pages = names_in("docs/callbacks.md", "| callback | what it does |");
  on_pages.merge(names_in("docs/callbacks_tuning.md", "| class | does |"));
  Names names;
  for (const auto& callback : cli::callback_classes()) names.insert(callback.name);
  EXPECT_EQ(missing(on_pages, names), "");
}

/// Classes that a header declares with a body.
Names classes() {
  static const std::regex declared(R"((?:^|\n)(?:class|struct) (\w+)(?: final)? ?(?::[^;{]*)?\{)");
  Names names;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(source_dir()) / "levin")) {
    if (entry.path().extension() != ".h") continue;
    const auto text = read_file(entry.path(), 1 << 22);
    for (std::sregex_iterator at(text.begin(), text.end(), declared), end; at != end; ++at) names.insert((*at)[1]);
  }
  return names;
}

TEST(Tables, LightningsPageSaysNoneOfNothingThatIsThere) {
  auto there = classes();
  ASSERT_TRUE(there.contains("PyTorchProfiler") && there.contains("ModelParallelStrategy"));
  for (const auto& names : {known_strategies(), logger_names(), profiler_names(), known_precisions()})
    there.insert(names.begin(), names.end());
  int none = 0;
  for (const auto& line : page("docs/from_lightning.md")) {
    const auto cells = cells_of(line);
    if (cells.size() < 2 || !cells[1].starts_with("none")) continue;
    ++none;
    for (const auto& word : code_words(cells[0]))
      EXPECT_FALSE(there.contains(word)) << "docs/from_lightning.md says none of " << word << ": " << line;
  }
  EXPECT_GE(none, 5);
}

TEST(Tables, LightningsPageNamesEveryProfilerLoggerAndCallback) {
  const auto text = read_file(fs::path(source_dir()) / "docs/from_lightning.md", 1 << 22);
  const auto there = classes();
  Names expected;
  for (const auto& callback : cli::callback_classes()) expected.insert(callback.name);
  for (const auto* name : {"SimpleProfiler", "PyTorchProfiler", "MemoryProfiler", "CsvLogger", "JsonLinesLogger",
                           "ConsoleLogger", "TensorBoardLogger"})
    expected.insert(name);
  EXPECT_EQ(profiler_names().size(), 3u) << "name the new profiler here, and on the page";
  EXPECT_EQ(logger_names().size(), 4u) << "name the new logger here, and on the page";
  EXPECT_EQ(missing(there, {"SimpleProfiler", "MemoryProfiler", "ConsoleLogger"}), "");
  for (const auto& name : expected) EXPECT_NE(text.find("`" + name), std::string::npos) << name;
}

}  // namespace
}  // namespace levin::testing
