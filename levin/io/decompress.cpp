#include "levin/io/decompress.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;

Compression compression_of(const FileReader& file) {
  std::array<unsigned char, 4> head{};
  file.read(0, std::as_writable_bytes(std::span(head)).first(std::min<uint64_t>(head.size(), file.size())));
  if (file.size() >= 2 && head[0] == 0x1f && head[1] == 0x8b) return Compression::kGzip;
  // A frame of data, or one that is passed over (0x184D2A50 to 0x184D2A5F).
  const bool rest = head[1] == 0xb5 && head[2] == 0x2f && head[3] == 0xfd;
  const bool passed_over = (head[0] & 0xf0) == 0x50 && head[1] == 0x2a && head[2] == 0x4d && head[3] == 0x18;
  if (file.size() >= 4 && ((head[0] == 0x28 && rest) || passed_over)) return Compression::kZstd;
  return Compression::kNone;
}

void decompress(const FileReader& file, Compression kind, const EachBlock& each) {
  if (kind == Compression::kGzip) return decompress_gzip(file, each);
  if (kind == Compression::kZstd) return decompress_zstd(file, each);
  fail(concat("[records] \"", file.path().string(), "\" is not compressed"));
}

std::span<const std::byte> BlockReader::next() {
  const auto count = static_cast<size_t>(std::min<uint64_t>(kBytes, file_.size() - at_));
  const auto block = std::span(buffer_).first(count);
  file_.read(at_, block);
  at_ += count;
  return block;
}

void decompress_gzip(const FileReader& file, const EachBlock& each) {
  z_stream stream{};
  LEVIN_CHECK(::inflateInit2(&stream, 15 + 16) == Z_OK, "[records] cannot start zlib");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::inflateEnd);
  BlockReader blocks(file);
  std::vector<std::byte> out(BlockReader::kBytes);
  const auto damaged = [&](std::string_view what) {
    fail(concat("[records] \"", file.path().string(), "\" cannot be decompressed: ", what));
  };
  bool inside = true;  // of a member; files may follow each other
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(block.data()));
    stream.avail_in = static_cast<uInt>(block.size());
    while (stream.avail_in > 0 || stream.avail_out == 0) {
      if (!inside) {
        // Zeros behind the last member are the padding of tapes.
        while (stream.avail_in > 0 && *stream.next_in == 0) {
          ++stream.next_in;
          --stream.avail_in;
        }
        if (stream.avail_in == 0) break;
        if (::inflateReset(&stream) != Z_OK) damaged("zlib does not start again");
        inside = true;
      }
      stream.next_out = reinterpret_cast<Bytef*>(out.data());
      stream.avail_out = static_cast<uInt>(out.size());
      const int result = ::inflate(&stream, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        damaged(stream.msg ? stream.msg : "the data are damaged");
      if (const auto count = out.size() - stream.avail_out; count > 0) each(std::span(out).first(count));
      if (result == Z_STREAM_END) {
        inside = false;
        stream.avail_out = 1;  // nothing is left inside
      } else if (result == Z_BUF_ERROR) {
        break;  // wants more of the file
      }
    }
  }
  if (inside) damaged("it is truncated");
}

UnpackedFiles::UnpackedFiles() {
  std::error_code error;
  auto folder = fs::temp_directory_path(error);
  if (error) folder = "/tmp";
  auto name = (folder / "levin-unpacked-XXXXXX").string();
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) fail_file("create a file in", folder, errno);
  ::unlink(name.c_str());
}

UnpackedFiles::~UnpackedFiles() {
  if (fd_ >= 0) ::close(fd_);
}

void UnpackedFiles::put(std::span<const std::byte> bytes) {
  const bool zeros = std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  auto at = size_;
  size_ += bytes.size();
  if (zeros) return;  // a hole reads as zeros
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_file("write what is unpacked to", fs::temp_directory_path(), count < 0 ? errno : ENOSPC);
    at += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

UnpackedFiles::Place UnpackedFiles::add(const FileReader& file, Compression kind, uint64_t most) {
  const auto begin = size_;
  decompress(file, kind, [&](std::span<const std::byte> block) {
    LEVIN_CHECK(size_ - begin + block.size() <= most, "[records] \"", file.path().string(), "\" of ",
                format_bytes(static_cast<double>(file.size())), " unpacks to more than ",
                format_bytes(static_cast<double>(most)), "; unpack it on the disk");
    put(block);
  });
  if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0)
    fail_file("write what is unpacked to", fs::temp_directory_path(), errno);
  return {begin, size_ - begin};
}

void UnpackedFiles::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t count = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    LEVIN_CHECK(count > 0, "[records] an unpacked file ends at byte ", offset);
    offset += static_cast<uint64_t>(count);
    into = into.subspan(static_cast<size_t>(count));
  }
}

}  // namespace levin::detail
