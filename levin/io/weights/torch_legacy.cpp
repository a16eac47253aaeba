#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/weights/pickle_nodes.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/torch_storages.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

using pickle::Kind;
using pickle::Value;

constexpr std::string_view kZipMagic = "PK\3\4";
/// 0x1950a86a20f9469cfc6c as the opcode LONG1.
constexpr std::string_view kLegacyMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kLegacyVersion = 1001;
constexpr size_t kTorchBeginning = 512;
/// The pickles of a model take kilobytes; storages follow, which are not to be read for nothing.
constexpr std::array<uint64_t, 3> kPickleWindows{uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20};

struct LegacyStorage {
  uint64_t offset = 0;
  uint64_t elements = 0;
  uint64_t width = 0;
  bool found = false;
};

class LegacyStorages : public TorchStorages {
 public:
  explicit LegacyStorages(const fs::path& path) : file(path) {}

  const fs::path& path() const override { return file.path(); }
  uint64_t bytes(const std::string& storage) const override {
    const auto& place = places.at(storage);
    return place.elements * place.width;
  }
  void read(const std::string& storage, uint64_t begin, std::span<std::byte> into) const override {
    LEVIN_CHECK(begin <= bytes(storage) && into.size() <= bytes(storage) - begin, "[torch_file] \"", path().string(),
                "\": storage \"", shown(storage), "\" has ", bytes(storage), " bytes; asked for ", into.size(),
                " from ", begin, " on");
    file.read(places.at(storage).offset + begin, into);
  }
  void verify(const std::string&) const override {}

  FileReader file;
  std::unordered_map<std::string, LegacyStorage> places;
};

/// Walks over the pickles and what follows them.
class LegacyParser {
 public:
  explicit LegacyParser(LegacyStorages& storages) : storages_(storages), where_(storages.path().string()) {}

  Value run() {
    const auto magic = plain("the magic number");
    LEVIN_CHECK(magic.is(Kind::big_integer) && magic.text() == kLegacyMagic.substr(2), "[torch_file] \"", where_,
                "\" is no file of torch.save: its magic number differs");
    const auto version = plain("the version");
    LEVIN_CHECK(version.is(Kind::integer) && version.integer() == kLegacyVersion, "[torch_file] \"", where_,
                "\" is of a format version that is not known; ", kLegacyVersion, " is");
    LEVIN_CHECK(plain("the sizes of types").is(Kind::dict), "[torch_file] \"", where_,
                "\" is damaged: no dict of types");
    auto whole = next([&](std::span<const std::byte> bytes, size_t& used) {
      // Each try begins again.
      storages_.places.clear();
      return load_torch_pickle(
          bytes,
          [&](const std::string& key, uint64_t elements, uint64_t width) { return declare(key, elements, width); },
          where_, &used);
    });
    place(plain("the keys of storages"));
    return whole;
  }

 private:
  /// The next pickle, out of a window that is as small as it can be.
  Value next(const std::function<Value(std::span<const std::byte>, size_t&)>& load) {
    for (const auto window : kPickleWindows) {
      const auto left = storages_.file.size() - at_;
      buffer_.resize(std::min(window, left));
      storages_.file.read(at_, std::as_writable_bytes(std::span(buffer_)));
      const bool last = window >= left || window == kPickleWindows.back();
      try {
        size_t used = 0;
        auto value = load(std::as_bytes(std::span(buffer_)), used);
        at_ += used;
        return value;
      } catch (const Error&) {
        if (last) throw;
      }
    }
    return {};
  }

  Value plain(const char* what) {
    return next([&](std::span<const std::byte> bytes, size_t& used) {
      return pickle::load(bytes, {}, concat(where_, ", ", what), &used);
    });
  }

  uint64_t declare(const std::string& key, uint64_t elements, uint64_t width) {
    uint64_t bytes = 0;
    LEVIN_CHECK(!__builtin_mul_overflow(elements, width, &bytes) && bytes <= storages_.file.size(),
                "[pickle] storage \"", shown(key), "\" is said to have ", elements, " elements of ", width,
                " bytes; the file has ", storages_.file.size(), " bytes");
    const auto [found, fresh] = storages_.places.emplace(key, LegacyStorage{0, elements, width});
    LEVIN_CHECK(fresh || (found->second.elements == elements && found->second.width == width), "[pickle] storage \"",
                shown(key), "\" is said to have two sizes");
    return bytes;
  }

  /// Storages stand in the order of the keys, each after its number of elements, little-endian on every machine.
  void place(const Value& keys) {
    LEVIN_CHECK(keys.is(Kind::list), "[torch_file] \"", where_, "\" is damaged: the keys of storages are ",
                pickle::kind_name(keys.kind()));
    for (const auto& key : keys.items()) {
      const bool named = key.is(Kind::text) || key.is(Kind::bytes);
      const auto found = named ? storages_.places.find(key.text()) : storages_.places.end();
      LEVIN_CHECK(found != storages_.places.end() && !found->second.found, "[torch_file] \"", where_,
                  "\" is damaged: the key of a storage is listed twice, or no tensor is of it");
      auto& storage = found->second;
      uint64_t elements = 0;
      const auto size = storages_.file.size();
      const auto name = shown(key.text());
      LEVIN_CHECK(size - at_ >= sizeof(elements), "[torch_file] \"", where_,
                  "\" is truncated: it ends before storage \"", name, "\"");
      storages_.file.read(at_, std::as_writable_bytes(std::span(&elements, 1)));
      LEVIN_CHECK(elements == storage.elements, "[torch_file] \"", where_, "\" is damaged: storage \"", name,
                  "\" is said to have ", storage.elements, " elements, and has ", elements);
      storage.offset = at_ + sizeof(elements);
      storage.found = true;
      const auto bytes = storage.elements * storage.width;
      LEVIN_CHECK(size - storage.offset >= bytes, "[torch_file] \"", where_, "\" is truncated: storage \"", name,
                  "\" needs ", bytes, " bytes, the file has ", size - storage.offset);
      at_ = storage.offset + bytes;
    }
    for (const auto& [key, storage] : storages_.places)
      LEVIN_CHECK(storage.found, "[torch_file] \"", where_, "\" is damaged: it has no storage \"", shown(key), "\"");
    LEVIN_CHECK(at_ == storages_.file.size(), "[torch_file] \"", where_, "\" has ", storages_.file.size() - at_,
                " bytes after its end");
  }

  LegacyStorages& storages_;
  std::string where_;
  uint64_t at_ = 0;
  std::string buffer_;
};

}  // namespace

TorchContent open_torch_legacy(const fs::path& path) {
  const auto storages = std::make_shared<LegacyStorages>(path);
  auto whole = LegacyParser(*storages).run();
  return {storages, std::move(whole)};
}

std::string torch_beginning(const fs::path& path) {
  const FileReader file(path);
  std::string text(std::min<uint64_t>(file.size(), kTorchBeginning), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

bool is_torch_zip(std::string_view beginning) {
  return beginning.starts_with(kZipMagic);
}

bool is_torch_legacy(std::string_view beginning) {
  // Protocol 4 and later have a frame before the number.
  return beginning.starts_with('\x80') && beginning.substr(0, 32).find(kLegacyMagic) != std::string_view::npos;
}

bool is_torch_tar(std::string_view beginning) {
  constexpr size_t kTarMagic = 257;
  if (beginning.size() < kTorchBeginning || beginning.substr(kTarMagic, 5) != "ustar") return false;
  if (beginning.starts_with("./")) beginning.remove_prefix(2);
  const auto name = beginning.substr(0, beginning.find('\0'));
  return name == "sys_info" || name == "storages" || name == "tensors" || name == "pickle";
}

}  // namespace levin::detail
