#include "levin/data/token_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/weights/npy.h"

namespace levin {
namespace {

enum class TokenType { kUint16, kUint32, kInt32, kInt64 };

constexpr std::array<uint64_t, 4> kTokenBytes{2, 4, 4, 8};

TokenType raw_type(const std::string& dtype) {
  const std::vector<std::string> known{"uint16", "uint32", "int32"};
  const auto found = std::find(known.begin(), known.end(), dtype);
  if (found == known.end()) fail_unknown("token data", "dtype", dtype, known);
  return static_cast<TokenType>(found - known.begin());
}

/// Little-endian numbers at `bytes`, the same on every machine that torch runs on.
template <class T>
void widen(const std::byte* bytes, int64_t* into, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    into[i] = static_cast<int64_t>(value);
  }
}

}  // namespace

struct TokenDataset::File {
  File(const std::filesystem::path& path, const TokenDatasetOptions& options) : file(path) {
    type = raw_type(options.dtype);
    const auto where = "\"" + path.string() + "\"";
    if (path.extension() != ".npy") {
      LEVIN_CHECK(file.size() % width() == 0, "[token data] ", where, " has ", file.size(),
                  " bytes, which is no multiple of ", width(), ", the size of ", options.dtype);
      count = static_cast<int64_t>(file.size() / width());
      return;
    }
    std::string bytes(std::min<uint64_t>(file.size(), 64 << 10), '\0');
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    const auto head = detail::parse_npy_head(bytes, where);
    const std::array<std::string, 4> names{"u2", "u4", "i4", "i8"};
    const auto found = std::find(names.begin(), names.end(), head.type);
    LEVIN_CHECK(found != names.end() && !head.big_endian && head.shape.size() == 1, "[token data] ", where, " holds ",
                head.big_endian ? "big-endian " : "", head.type, " in ", head.shape.size(),
                " dimensions; tokens are u2, u4, i4 or i8 in one");
    type = static_cast<TokenType>(found - names.begin());
    begin = head.data;
    count = head.shape[0];
    LEVIN_CHECK(static_cast<uint64_t>(count) == (file.size() - begin) / width() && (file.size() - begin) % width() == 0,
                "[token data] ", where, " declares ", count, " tokens, there are ", (file.size() - begin) / width());
  }

  uint64_t width() const { return kTokenBytes[static_cast<size_t>(type)]; }

  void read(int64_t at, int64_t many, int64_t* into) const {
    std::vector<std::byte> bytes(static_cast<size_t>(many) * width());
    file.read(begin + static_cast<uint64_t>(at) * width(), bytes);
    switch (type) {
      case TokenType::kUint16:
        return widen<uint16_t>(bytes.data(), into, many);
      case TokenType::kUint32:
        return widen<uint32_t>(bytes.data(), into, many);
      case TokenType::kInt32:
        return widen<int32_t>(bytes.data(), into, many);
      case TokenType::kInt64:
        return widen<int64_t>(bytes.data(), into, many);
    }
  }

  FileReader file;
  TokenType type = TokenType::kUint16;
  uint64_t begin = 0;
  int64_t count = 0;
  int64_t first = 0;  // window
};

TokenDataset::TokenDataset(const std::vector<std::filesystem::path>& files, TokenDatasetOptions options)
    : options_(std::move(options)) {
  LEVIN_CHECK(options_.length >= 1, "[token data] length ", options_.length, " is not allowed (1 or more)");
  LEVIN_CHECK(options_.stride >= 0, "[token data] stride ", options_.stride, " is not allowed (0 or more)");
  LEVIN_CHECK(!files.empty(), "[token data] no file was named");
  if (options_.stride == 0) options_.stride = options_.length;
  for (const auto& path : files) {
    auto file = std::make_shared<File>(path, options_);
    file->first = size_;
    // The target of the last token is one more.
    if (file->count > options_.length) size_ += (file->count - 1 - options_.length) / options_.stride + 1;
    tokens_ += file->count;
    files_.push_back(std::move(file));
  }
  LEVIN_CHECK(size_ > 0, "[token data] ", tokens_, " tokens in \"", files.front().string(),
              "\" do not fill one sample of ", options_.length, " and its target");
}

Batch TokenDataset::get(int64_t index) const {
  LEVIN_CHECK(index >= 0 && index < size_, "[token data] sample ", index, " was asked for, there are ", size_);
  const auto after = std::upper_bound(files_.begin(), files_.end(), index,
                                      [](int64_t value, const auto& file) { return value < file->first; });
  const File& file = **std::prev(after);
  const auto begin = (index - file.first) * options_.stride;
  const Tensor window = at::empty({options_.length + 1}, at::kLong);
  auto* tokens = window.mutable_data_ptr<int64_t>();
  file.read(begin, options_.length + 1, tokens);
  if (options_.vocab_size > 0)
    for (int64_t i = 0; i <= options_.length; ++i)
      LEVIN_CHECK(tokens[i] >= 0 && tokens[i] < options_.vocab_size, "[token data] \"", file.file.path().string(),
                  "\" has the token ", tokens[i], " at ", begin + i, " (vocab_size is ", options_.vocab_size, ")");
  return {{"input", window.narrow(0, 0, options_.length)}, {"target", window.narrow(0, 1, options_.length)}};
}

}  // namespace levin
