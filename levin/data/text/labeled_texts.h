#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// A text and its class, as a file has them.
struct LabeledText {
  std::string text;
  std::string label;
};

struct LabeledTextOptions {
  /// Columns of a table, keys of JSON lines.
  std::string text = "text";
  std::string label = "label";
};

/// Texts with classes: a folder of classes (pos/*.txt, neg/*.txt; IMDb's "unsup" is left out), a table with a header
/// (.csv, .tsv), or JSON lines (.jsonl, .json), each also as .gz. The order is that of the file, in a folder that of
/// the names. A missing column, an empty text or label, and a line that is no JSON object are Errors with the place.
///
///     const auto reviews = levin::read_labeled_texts("aclImdb/train");
std::vector<LabeledText> read_labeled_texts(const std::filesystem::path& path, const LabeledTextOptions& options = {});

/// The names of the classes: numbers in their order where all labels are whole numbers from 0 on without a gap, else in
/// the order of the alphabet.
std::vector<std::string> class_names(const std::vector<LabeledText>& texts);
/// Whether class_names took the labels for numbers.
bool are_class_numbers(const std::vector<std::string>& names);

/// The number of each text's class among `names`; an Error names a label that is not there. `where` stands in it.
std::vector<int64_t> class_numbers(const std::vector<LabeledText>& texts, const std::vector<std::string>& names,
                                   std::string_view where);

/// `count` made-up sentences that are "positive" or "negative" by the adjective in them: to try a training.
std::vector<LabeledText> generated_reviews(int64_t count, uint64_t seed = 0);

}  // namespace levin
