#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/batch.h"
#include "levin/io/records/records.h"

namespace levin {

struct TextDatasetOptions {
  /// Text to numbers; by default its bytes.
  std::function<std::vector<int64_t>(std::string_view)> encode = {};
  /// Every sample has this many numbers: longer ones are cut, shorter ones filled up. 0: as long as each is, which only
  /// batches of one can hold.
  int64_t length = 0;
  /// What fills up.
  int64_t pad = 0;
  /// The format; by default what the path looks like (see open_records).
  std::string format = "auto";
};

/// The lines of a text file, or the field "text" of other records: "input" int64 [length], "length" int64 [] (what of
/// it is text) and "label" where there is one. Called from several threads at once, and so is `encode`. A small handle:
/// copies share the open file.
///
///     levin::TextDataset lines("reviews.csv", {.encode = tokenize, .length = 128});
class TextDataset {
 public:
  explicit TextDataset(const std::string& path, TextDatasetOptions options = {});
  explicit TextDataset(std::shared_ptr<const RecordReader> records, TextDatasetOptions options = {});

  int64_t size() const { return records_->size(); }
  /// The text itself.
  std::string text(int64_t index) const;
  Batch get(int64_t index) const;
  /// Names of the classes, by label; empty when they are not known.
  std::vector<std::string> classes() const { return records_->classes(); }

 private:
  std::shared_ptr<const RecordReader> records_;
  TextDatasetOptions options_;
};

}  // namespace levin
