#include "levin/program/recipes/text_data.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/data/loader.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

/// What of a folder is the set of that name: a folder, or a file.
fs::path set_in(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names)
    for (const char* end : {"", ".csv", ".tsv", ".jsonl", ".json", ".txt"})
      if (const auto path = folder / (std::string(name) + end); fs::exists(path)) return path;
  return {};
}

}  // namespace

TextData::TextData(const TextDataOptions& options, TextFolder folder) : options_(options), folder_(std::move(folder)) {
  constexpr int64_t kUsualLength = 512;
  LEVIN_CHECK(options_.max_length >= 0 && options_.max_length <= folder_.max_length, "[recipe] data.max_length ",
              options_.max_length, " is not allowed (1 to ", folder_.max_length, ", which the model allows)");
  max_length_ = options_.max_length > 0 ? options_.max_length : std::min(kUsualLength, folder_.max_length);
  LEVIN_CHECK(options_.batch_size >= 1 && options_.eval_batch_size >= 1 && options_.pad_to_multiple_of >= 1,
              "[recipe] data.batch_size, data.eval_batch_size and data.pad_to_multiple_of must be at least 1");
  LEVIN_CHECK(options_.val_fraction >= 0 && options_.val_fraction < 1, "[recipe] data.val_fraction ",
              options_.val_fraction, " is not allowed (0 to below 1)");
}

std::array<fs::path, 3> TextData::set_paths(std::string_view what) const {
  std::array<fs::path, 3> paths{options_.train, options_.val, options_.test};
  if (!options_.folder.empty()) {
    LEVIN_CHECK(fs::is_directory(options_.folder), "[recipe] data.folder \"", options_.folder.string(),
                "\" is not a folder");
    if (paths[0].empty()) paths[0] = set_in(options_.folder, {"train"});
    if (paths[1].empty()) paths[1] = set_in(options_.folder, {"val", "validation", "dev"});
    if (paths[2].empty()) paths[2] = set_in(options_.folder, {"test"});
    LEVIN_CHECK(!paths[0].empty(), "[recipe] data.folder \"", options_.folder.string(),
                "\" has no train: neither a folder nor train.csv, train.jsonl or the like");
  }
  LEVIN_CHECK(!paths[0].empty(), "[recipe] data.train (or data.folder) must name ", what);
  return paths;
}

std::vector<int64_t> TextData::split_indices(int64_t size) const {
  const auto count = static_cast<int64_t>(static_cast<double>(size) * options_.val_fraction);
  LEVIN_CHECK(count < size, "[recipe] data.val_fraction leaves nothing to train with");
  auto order = Sampler::shuffled().order(size, /*seed=*/0, /*epoch=*/0);
  order.resize(static_cast<size_t>(count));
  return order;
}

PadRows TextData::padding() const {
  return {.pad_token = folder_.pad_token,
          .multiple_of = options_.pad_to_multiple_of,
          .length = options_.pad_to_max_length ? max_length_ : 0};
}

Loaders<Batch> TextData::train_dataloader() {
  const auto& rows = rows_[0];
  constexpr int64_t kBatchesOfGroup = 50;
  LoaderOptions loader{.batch_size = options_.batch_size};
  if (options_.order == "by_length")
    loader.sampler = Sampler::by_length(rows.lengths(), kBatchesOfGroup * options_.batch_size);
  else
    loader.shuffle = options_.order == "shuffled";
  return make_loader(rows, loader, padding());
}

Loaders<Batch> TextData::evaluation_loader(const TokenRows& rows) const {
  if (rows.size() == 0) return {};
  return make_loader(rows, {.batch_size = options_.eval_batch_size}, padding());
}

Loaders<Batch> TextData::val_dataloader() {
  return evaluation_loader(rows_[1]);
}

Loaders<Batch> TextData::test_dataloader() {
  LEVIN_CHECK(rows_[2].size() > 0, "[recipe] there is no test data: data.test (or data.folder) must name it");
  return evaluation_loader(rows_[2]);
}

std::vector<int64_t> cut_encoding(const text::Tokenizer& tokenizer, std::string_view text, int64_t length) {
  auto encoding = tokenizer.encode(text, {.tokens = false, .offsets = false});
  auto& ids = encoding.ids;
  const auto most = static_cast<size_t>(length);
  if (ids.size() <= most) return std::move(ids);
  const auto& added = encoding.special_mask;
  const auto behind = static_cast<size_t>(std::find(added.rbegin(), added.rend(), uint8_t{0}) - added.rbegin());
  LEVIN_CHECK(behind < most, "[recipe] data.max_length ", length, " leaves no room for a text");
  ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(most - behind), ids.end() - static_cast<std::ptrdiff_t>(behind));
  return std::move(ids);
}

}  // namespace levin::cli
