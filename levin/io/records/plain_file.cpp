#include "levin/io/records/plain_file.h"

#include <array>
#include <cstring>
#include <memory>

#include <unistd.h>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/core/regular_file.h"

namespace levin::detail {
namespace {

constexpr size_t kMostUnpacked = size_t{4} << 30;

std::string unpack_gzip(const std::filesystem::path& path) {
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };
  const int fd = open_regular(path);
  const std::unique_ptr<gzFile_s, Close> file(::gzdopen(fd, "rb"));
  if (!file) ::close(fd);
  LEVIN_CHECK(file, "[file] cannot open \"", path.string(), "\"");
  std::string content;
  std::string block(size_t{1} << 20, '\0');
  while (true) {
    const int count = ::gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    if (count <= 0) break;
    content.append(block, 0, static_cast<size_t>(count));
    LEVIN_CHECK(content.size() <= kMostUnpacked, "[file] \"", path.string(), "\" unpacks to more than ", kMostUnpacked,
                " bytes; unpack it on the disk");
  }
  int error = 0;
  const char* message = ::gzerror(file.get(), &error);
  LEVIN_CHECK(error == Z_OK || error == Z_STREAM_END, "[file] cannot decompress \"", path.string(), "\": ", message);
  return content;
}

}  // namespace

PlainFile::PlainFile(std::filesystem::path path) : file_(std::move(path)) {
  std::array<std::byte, 2> magic{};
  if (file_.size() >= magic.size()) file_.read(0, magic);
  compressed_ = magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b};
  // One that is cut within the first two bytes would pass for plain text.
  LEVIN_CHECK(file_.size() >= magic.size() || file_.path().extension() != ".gz", "[file] \"", file_.path().string(),
              "\" is truncated: it has ", file_.size(), " bytes, and gzip has more");
  if (compressed_) content_ = unpack_gzip(file_.path());
}

void PlainFile::read(uint64_t offset, std::span<std::byte> into) const {
  if (!compressed_) return file_.read(offset, into);
  LEVIN_CHECK(offset <= content_.size() && into.size() <= content_.size() - offset, "[file] \"", path().string(),
              "\" ends at byte ", content_.size(), " of its content, ", offset + into.size(), " were asked for");
  std::memcpy(into.data(), content_.data() + offset, into.size());
}

}  // namespace levin::detail
