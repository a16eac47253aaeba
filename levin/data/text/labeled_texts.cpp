#include "levin/data/text/labeled_texts.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "levin/core/error.h"
#include "levin/core/random.h"
#include "levin/core/words.h"
#include "levin/data/text/json_lines.h"
#include "levin/io/records/csv/csv_rows.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == text.npos;
}

void add_checked(std::vector<LabeledText>& into, LabeledText one, const std::string& where) {
  LEVIN_CHECK(!is_blank(one.text), "[data] ", where, ": the text is empty");
  LEVIN_CHECK(!is_blank(one.label), "[data] ", where, ": the label is empty");
  into.push_back(std::move(one));
}

/// Folders of classes and their files, sorted: what a file system lists is in no order.
std::vector<LabeledText> texts_in_folders(const fs::path& folder) {
  std::map<std::string, std::set<fs::path>> classes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (!entry.is_directory() || name.starts_with('.') || name == "unsup") continue;
    for (const auto& file : fs::directory_iterator(entry.path()))
      if (file.path().extension() == ".txt") classes[name].insert(file.path());
  }
  LEVIN_CHECK(!classes.empty(), "[data] \"", folder.string(),
              "\" has no folders of classes with .txt files, such as pos/1.txt");
  std::vector<LabeledText> texts;
  for (const auto& [name, files] : classes)
    for (const auto& file : files)
      add_checked(texts, {detail::plain_text(file), name}, detail::concat("\"", file.string(), "\""));
  return texts;
}

size_t column_of(const std::vector<std::string>& header, const std::string& name, const fs::path& path) {
  const auto found = std::find(header.begin(), header.end(), name);
  if (found != header.end()) return static_cast<size_t>(found - header.begin());
  std::vector<std::string> known;
  for (const auto& each : header) known.push_back(shown(each));
  auto line =
      detail::concat("[data] \"", path.string(), "\" has no column \"", name, "\"; its columns are ", join(known));
  // A spreadsheet of some countries writes another separator.
  for (const auto& [separator, word] : {std::pair{';', "semicolons"}, {'\t', "tabs"}, {'|', "bars"}, {',', "commas"}})
    if (header.size() == 1 && header[0].find(separator) != std::string::npos)
      line += detail::concat(" (they are separated by ", word, "; a .csv has commas, a .tsv tabs)");
  detail::fail(line);
}

std::vector<LabeledText> texts_in_table(const fs::path& path, const LabeledTextOptions& options) {
  const detail::PlainFile file(path);
  detail::CsvRows rows(file);
  const char separator = detail::has_ending(path, {".tsv"}) ? '\t' : ',';
  const auto where = [&] { return detail::concat("\"", path.string(), "\", row ", rows.number()); };
  LEVIN_CHECK(rows.next(), "[data] \"", path.string(), "\" is empty");
  const auto header = detail::parse_csv_row(rows.row(), separator, where());
  const auto text = column_of(header, options.text, path), label = column_of(header, options.label, path);
  std::vector<LabeledText> texts;
  while (rows.next()) {
    if (valid_utf8_prefix(rows.row()) < rows.row().size())
      check_utf8_line(rows.row(), detail::concat("[data] ", where()));
    const auto cells = detail::parse_csv_row(rows.row(), separator, where());
    LEVIN_CHECK(cells.size() == header.size(), "[data] ", where(), " has ", cells.size(), " cells, the header ",
                header.size());
    add_checked(texts, {cells[text], cells[label]}, where());
  }
  return texts;
}

}  // namespace

std::vector<LabeledText> read_labeled_texts(const fs::path& path, const LabeledTextOptions& options) {
  LEVIN_CHECK(fs::exists(path), "[data] \"", path.string(), "\" is not there");
  std::vector<LabeledText> texts;
  if (fs::is_directory(path)) {
    texts = texts_in_folders(path);
  } else if (detail::has_ending(path, {".csv", ".tsv"})) {
    texts = texts_in_table(path, options);
  } else if (detail::has_ending(path, {".jsonl", ".json", ".ndjson"})) {
    detail::each_json_line(path, [&](const detail::JsonObject& object) {
      add_checked(texts, {object.text(options.text), object.word(options.label)}, object.where());
    });
  } else {
    detail::fail(detail::concat("[data] \"", path.string(),
                                "\" is neither a folder of classes nor a .csv, .tsv or .jsonl file"));
  }
  LEVIN_CHECK(!texts.empty(), "[data] \"", path.string(), "\" has no texts");
  return texts;
}

bool are_class_numbers(const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] != std::to_string(i)) return false;
  return true;
}

std::vector<std::string> class_names(const std::vector<LabeledText>& texts) {
  std::set<std::string> found;
  for (const auto& each : texts) found.insert(each.label);
  std::vector<std::string> numbers;
  for (size_t i = 0; i < found.size(); ++i) numbers.push_back(std::to_string(i));
  if (std::all_of(numbers.begin(), numbers.end(), [&](const auto& name) { return found.contains(name); }))
    return numbers;
  return {found.begin(), found.end()};
}

std::vector<int64_t> class_numbers(const std::vector<LabeledText>& texts, const std::vector<std::string>& names,
                                   std::string_view where) {
  std::vector<int64_t> numbers;
  for (const auto& each : texts) {
    const auto found = std::find(names.begin(), names.end(), each.label);
    if (found == names.end()) {
      std::vector<std::string> known;
      for (const auto& name : names) known.push_back(shown(name));
      detail::fail(detail::concat("[data] ", where, " has the label \"", shown(each.label),
                                  "\", which the training data does not have (it has: ", join(known), ")"));
    }
    numbers.push_back(found - names.begin());
  }
  return numbers;
}

std::vector<LabeledText> generated_reviews(int64_t count, uint64_t seed) {
  static const std::array<std::vector<std::string>, 2> kAdjectives{
      std::vector<std::string>{"dull", "weak", "boring", "awful"},
      std::vector<std::string>{"great", "funny", "moving", "lovely"}};
  static const std::vector<std::string> kThings{"film", "story", "cast", "plot", "ending", "music"};
  static const std::vector<std::string> kEnds{".", " from start to end .", " , we thought .", " again and again ."};
  std::vector<LabeledText> texts;
  for (int64_t i = 0; i < count; ++i) {
    Random random(seed, 0, static_cast<uint64_t>(i));
    const auto one_of = [&](const std::vector<std::string>& words) {
      return words[static_cast<size_t>(random.below(words.size()))];
    };
    const auto kind = static_cast<size_t>(random.below(2));
    texts.push_back({"the " + one_of(kThings) + " was " + one_of(kAdjectives[kind]) + " and the " + one_of(kThings) +
                         " was " + one_of(kAdjectives[kind]) + one_of(kEnds),
                     kind ? "positive" : "negative"});
  }
  return texts;
}

}  // namespace levin
