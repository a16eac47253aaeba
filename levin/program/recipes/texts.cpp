#include "levin/program/recipes/texts.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/recipes/bible.h"
#include "levin/text/unicode/unicode.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = size_t{1} << 20;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// By its first bytes.
bool is_bible(const fs::path& path) {
  if (!fs::is_regular_file(path)) return false;
  const FileReader file(path);
  std::string head(4, '\0');
  if (file.size() < head.size()) return false;
  file.read(0, std::as_writable_bytes(std::span(head)));
  return head == "EC02";
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
    if (is_hidden(it->path())) {
      if (it->is_directory()) it.disable_recursion_pending();
    } else if (it->is_regular_file() && it->file_size() > 0) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/// Where a block may end so that its words are those of the text in one piece: behind the line end between two words.
/// Else behind any line end, else behind a character.
size_t good_end(std::string_view text) {
  size_t any = 0;
  for (auto at = text.rfind('\n', text.size() - 2); at != text.npos && at > 0; at = text.rfind('\n', at - 1)) {
    if (!is_space(text[at - 1]) && !is_space(text[at + 1])) return at + 1;
    any = std::max(any, at + 1);
  }
  if (any > 0) return any;
  auto end = text.size() - 1;
  while (end > 1 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace

Texts Texts::of(std::string text, std::string name) {
  Texts texts;
  texts.name_ = std::move(name);
  texts.memory_ = std::make_shared<const std::string>(std::move(text));
  return texts;
}

Texts Texts::open(const fs::path& path) {
  if (path.empty()) {
    if (is_bible(kBibleFile)) return of(bible_text(read_file(kBibleFile)), "the King James Bible");
    auto texts = of(std::string(bible_excerpt()), "the first chapters of Genesis");
    texts.note_ =
        "Debian's package bible-kjv-text is not installed: only the first chapters of Genesis are learned; "
        "--data.file takes any text";
    return texts;
  }
  Texts texts;
  texts.name_ = path.string();
  LEVIN_CHECK(fs::exists(path), "[gpt_text] data.file: \"", path.string(), "\" is not there");
  if (is_bible(path)) return of(bible_text(read_file(path)), path.string());
  if (fs::is_directory(path))
    texts.files_ = files_of(path);
  else
    texts.files_ = {path};
  LEVIN_CHECK(!texts.files_.empty(), "[gpt_text] data.file: the folder \"", path.string(), "\" has no texts");
  return texts;
}

bool Texts::Blocks::fill(size_t wanted) {
  if (texts_->files_.empty()) {
    if (at_ == texts_->memory_->size()) return false;
    const auto many = std::min<uint64_t>(wanted, texts_->memory_->size() - at_);
    buffer_.append(*texts_->memory_, at_, many);
    at_ += many;
    return true;
  }
  if (!file_) file_ = std::make_unique<FileReader>(texts_->files_[index_]);
  const auto many = static_cast<size_t>(std::min<uint64_t>(wanted, file_->size() - at_));
  if (many == 0) return false;
  const auto kept = buffer_.size();
  buffer_.resize(kept + many);
  file_->read(at_, std::as_writable_bytes(std::span(buffer_)).subspan(kept));
  at_ += many;
  return true;
}

void Texts::Blocks::check_utf8() const {
  const auto good = text::valid_utf8_prefix(block_);
  if (good == block_.size()) return;
  const auto name = texts_->files_.empty() ? texts_->name_ : texts_->files_[index_].string();
  throw Error(fmt::format("[gpt_text] data.file: \"{}\" is not UTF-8 (byte {})", shown(name),
                          at_ - (buffer_.size() - used_) - block_.size() + good));
}

bool Texts::Blocks::next() {
  if (ends_text_) {
    ++index_, at_ = 0, used_ = 0;
    buffer_.clear();
    file_.reset();
    ends_text_ = false;
  }
  if (index_ >= texts_->count()) return false;
  buffer_.erase(0, used_);
  used_ = 0;
  bool more = true;
  while (buffer_.size() < kBlock + 2 && more) more = fill(kBlock + 2 - buffer_.size());
  if (buffer_.size() < kBlock + 2) {
    ends_text_ = true;
    used_ = buffer_.size();
    block_ = buffer_;
    check_utf8();
    if (texts_->count() > 1 && !buffer_.ends_with('\n')) buffer_ += '\n';
    used_ = buffer_.size();
    block_ = buffer_;
    return true;
  }
  used_ = good_end(buffer_);
  block_ = std::string_view(buffer_).substr(0, used_);
  check_utf8();
  return true;
}

TextScan scan(const Texts& texts) {
  TextScan result;
  std::vector<bool> seen(0x110000);
  for (Texts::Blocks blocks(texts); blocks.next();) {
    const auto block = blocks.text();
    result.bytes += block.size();
    result.checksum = crc32c(block, result.checksum);
    for (size_t at = 0; at < block.size();) {
      const auto [point, bytes] = text::decode_utf8(block, at);
      seen[point] = true;
      at += bytes;
    }
  }
  LEVIN_CHECK(result.bytes > 0, "[gpt_text] data.file: \"", texts.name(), "\" is empty");
  for (char32_t point = 0; point < seen.size(); ++point)
    if (seen[point]) result.characters.push_back(point);
  return result;
}

}  // namespace levin::cli
