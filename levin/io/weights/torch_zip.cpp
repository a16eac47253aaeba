#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/pickle_nodes.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/torch_storages.h"
#include "levin/io/weights/zip_file.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLongestTorchPickle = uint64_t{256} << 20;

/// A name without the folder that all names of an archive begin with.
std::string_view inner_name(std::string_view name) {
  const auto slash = name.find('/');
  return slash == name.npos ? std::string_view() : name.substr(slash + 1);
}

/// The code of a TorchScript archive is not looked at.
ZipFile open_archive(const fs::path& path) {
  return ZipFile(path, [](std::string_view name) { return !inner_name(name).starts_with("code/"); });
}

std::string checked_prefix(const ZipFile& zip) {
  const auto where = zip.path().string();
  const ZipEntry* pickle = nullptr;
  for (const auto& entry : zip.entries()) {
    if (inner_name(entry.name) != "data.pkl") continue;
    LEVIN_CHECK(!pickle, "[torch_file] \"", where, "\" has two pickles, \"", pickle->name, "\" and \"", entry.name,
                "\"");
    pickle = &entry;
  }
  LEVIN_CHECK(pickle, "[torch_file] \"", where, "\" is a zip archive without a data.pkl, no file of torch.save");
  return pickle->name.substr(0, pickle->name.find('/') + 1);
}

class ZipStorages : public TorchStorages {
 public:
  explicit ZipStorages(const fs::path& path) : zip(open_archive(path)), prefix(checked_prefix(zip)) {}

  const fs::path& path() const override { return zip.path(); }
  uint64_t bytes(const std::string& storage) const override { return record(storage).bytes; }
  void read(const std::string& storage, uint64_t begin, std::span<std::byte> into) const override {
    zip.read(record(storage), begin, into);
  }
  void verify(const std::string& storage) const override { zip.verify(record(storage)); }

  ZipFile zip;
  std::string prefix;

 private:
  const ZipEntry& record(const std::string& storage) const { return zip.at(prefix + "data/" + storage); }
};

}  // namespace

TorchContent open_torch_zip(const fs::path& path) {
  const auto storages = std::make_shared<ZipStorages>(path);
  const auto& zip = storages->zip;
  const auto& prefix = storages->prefix;
  const auto where = path.string();
  TorchContent content{.storages = storages};
  if (const auto* order = zip.find(prefix + "byteorder")) {
    const auto text = zip.read(*order, 16);
    LEVIN_CHECK(text == "little" || text == "big", "[torch_file] \"", where, "\" has the byte order \"", shown(text),
                "\"; little and big are known");
    content.swapped = text == "big";
  }
  const auto& data = zip.at(prefix + "data.pkl");
  const auto bytes = zip.read(data, kLongestTorchPickle);
  LEVIN_CHECK(crc32_zip(std::as_bytes(std::span(bytes))) == data.crc, "[torch_file] \"", where,
              "\" is damaged: the checksum of data.pkl differs");
  const auto record_bytes = [&](const std::string& key, uint64_t, uint64_t) {
    const auto* entry = zip.find(prefix + "data/" + key);
    LEVIN_CHECK(entry, "[pickle] storage \"", shown(key), "\" is not in the archive");
    return entry->bytes;
  };
  content.script = zip.find(prefix + "constants.pkl") != nullptr;
  content.whole = load_torch_pickle(std::as_bytes(std::span(bytes)), record_bytes, where, nullptr, content.script);
  return content;
}

}  // namespace levin::detail
