#include "levin/io/records/idx.h"

#include <algorithm>
#include <array>
#include <memory>

#include <ATen/ops/empty.h>
#include <unistd.h>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/regular_file.h"
#include "levin/io/byte_order.h"

namespace levin {
namespace {

constexpr size_t kMostDimensions = 8;
/// Deflate cannot pack more than this many bytes into one.
constexpr uint64_t kBestRatio = 1032;

/// The bytes of a plain or compressed file, one after the other. zlib reads plain files as they are.
class Stream {
 public:
  explicit Stream(const std::filesystem::path& path) : where_(path.string()) {
    const FileReader file(path);
    file_bytes_ = file.size();
    std::array<std::byte, 2> magic{};
    if (file_bytes_ >= 2) file.read(0, magic);
    compressed_ = magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b};
    const int fd = detail::open_regular(path);
    gz_.reset(::gzdopen(fd, "rb"));
    if (!gz_) ::close(fd);
    LEVIN_CHECK(gz_, "[idx] cannot open \"", where_, "\"");
    ::gzbuffer(gz_.get(), 256 << 10);
  }

  /// Bytes read, fewer than asked for only at the end.
  size_t read(void* into, size_t count) {
    size_t done = 0;
    while (done < count) {
      const auto want = static_cast<unsigned>(std::min<size_t>(count - done, size_t{1} << 30));
      const int got = ::gzread(gz_.get(), static_cast<char*>(into) + done, want);
      if (got < 0) {
        int error = 0;
        throw Error(detail::concat("[idx] cannot decompress \"", where_, "\": ", ::gzerror(gz_.get(), &error)));
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  /// The most data there can be after a header of `used` bytes.
  uint64_t most_bytes(uint64_t used) const {
    return compressed_ ? file_bytes_ * kBestRatio : file_bytes_ - std::min(file_bytes_, used);
  }
  /// True when zlib met the end of the file in the middle of its stream.
  bool broken() const {
    int error = 0;
    ::gzerror(gz_.get(), &error);
    return error != Z_OK && error != Z_STREAM_END;
  }

 private:
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };
  std::string where_;
  uint64_t file_bytes_ = 0;
  bool compressed_ = false;
  std::unique_ptr<gzFile_s, Close> gz_;
};

c10::ScalarType type_of(uint8_t code, const std::string& where) {
  switch (code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0b:
      return at::kShort;
    case 0x0c:
      return at::kInt;
    case 0x0d:
      return at::kFloat;
    case 0x0e:
      return at::kDouble;
    default:
      throw Error(
          detail::concat("[idx] \"", where, "\" has the type code ", int{code}, " (known: 8, 9, 11, 12, 13, 14)"));
  }
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, IdxOptions options) {
  const auto where = path.string();
  Stream stream(path);
  std::array<uint8_t, 4> magic{};
  LEVIN_CHECK(stream.read(magic.data(), 4) == 4 && magic[0] == 0 && magic[1] == 0, "[idx] \"", where,
              "\" is not an IDX file");
  const auto type = type_of(magic[2], where);
  LEVIN_CHECK(magic[3] >= 1 && magic[3] <= kMostDimensions, "[idx] \"", where, "\" has ", int{magic[3]},
              " dimensions (1 to ", kMostDimensions, " are allowed)");

  std::vector<int64_t> shape;
  uint64_t bytes = c10::elementSize(type);
  for (int i = 0; i < magic[3]; ++i) {
    std::array<uint8_t, 4> size{};
    LEVIN_CHECK(stream.read(size.data(), 4) == 4, "[idx] \"", where, "\" ends within its header");
    shape.push_back(int64_t{size[0]} << 24 | int64_t{size[1]} << 16 | int64_t{size[2]} << 8 | int64_t{size[3]});
    LEVIN_CHECK(
        !__builtin_mul_overflow(bytes, static_cast<uint64_t>(shape.back()), &bytes) && bytes <= options.limit_bytes,
        "[idx] \"", where, "\" declares more than ", options.limit_bytes, " bytes");
  }
  const auto most = stream.most_bytes(4 + 4 * shape.size());
  LEVIN_CHECK(bytes <= most, "[idx] \"", where, "\" is truncated: it declares ", bytes,
              " bytes of data, there are at most ", most);

  auto tensor = at::empty(shape, at::TensorOptions().dtype(type));
  const auto got = stream.read(tensor.data_ptr(), bytes);
  LEVIN_CHECK(got == bytes, "[idx] \"", where, "\" is truncated: it declares ", bytes, " bytes of data, there are ",
              got);
  char more = 0;
  LEVIN_CHECK(stream.read(&more, 1) == 0, "[idx] \"", where, "\" has bytes after the ", bytes, " it declares");
  LEVIN_CHECK(!stream.broken(), "[idx] \"", where, "\" is truncated: its compressed data end too early");
  // The format is big-endian.
  detail::swap_bytes({static_cast<std::byte*>(tensor.data_ptr()), bytes}, tensor.element_size());
  return tensor;
}

}  // namespace levin
