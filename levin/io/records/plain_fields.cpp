#include "levin/io/records/plain_fields.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/image_folder/image_folder.h"
#include "levin/io/records/record_files.h"

namespace levin::detail {
namespace fs = std::filesystem;

void check_index(int64_t index, int64_t size, std::string_view format, const fs::path& path) {
  LEVIN_CHECK(index >= 0 && index < size, "[", format, "] record ", index, " was asked for, \"", path.string(),
              "\" has ", size);
}

std::optional<int64_t> label_of(const Record& record, std::string_view format, std::string_view field) {
  const FieldValue* value = record.find(field);
  if (value == nullptr) return std::nullopt;
  const auto* numbers = std::get_if<std::vector<int64_t>>(value);
  LEVIN_CHECK(numbers != nullptr && numbers->size() == 1, "[", format, "] field \"", field, "\" of record \"",
              record.key, "\" is not one whole number");
  return numbers->front();
}

Tensor channels_first(const Tensor& pixels, std::string_view format) {
  LEVIN_CHECK(pixels.scalar_type() == at::kByte && (pixels.dim() == 2 || pixels.dim() == 3), "[", format,
              "] an image is uint8 [H, W, C] or [H, W]; this one is ", pixels.scalar_type(), " ", pixels.sizes());
  const Tensor image = pixels.dim() == 2 ? pixels.unsqueeze(0) : pixels.permute({2, 0, 1});
  LEVIN_CHECK(image.size(0) >= 1 && image.size(0) <= 4 && image.numel() > 0, "[", format,
              "] an image has 1 to 4 channels along its last dimension; this one is ", pixels.sizes());
  return image;
}

Tensor pixels_of(const Record& record, std::string_view format, ImageMode mode) {
  const FieldValue* value = record.find("image");
  LEVIN_CHECK(value != nullptr, "[", format, "] record \"", record.key, "\" has no field \"image\"");
  if (const auto* bytes = std::get_if<std::string>(value))
    return decode_image(std::as_bytes(std::span(*bytes)), {.mode = mode}).permute({1, 2, 0});
  const auto* pixels = std::get_if<Tensor>(value);
  LEVIN_CHECK(pixels != nullptr, "[", format, "] field \"image\" of record \"", record.key,
              "\" is neither encoded bytes nor pixels");
  return channels_first(*pixels, format).permute({1, 2, 0});
}

std::string encoded_of(const Record& record, std::string_view format) {
  const FieldValue* value = record.find("image");
  if (value != nullptr)
    if (const auto* bytes = std::get_if<std::string>(value)) return *bytes;
  return encode_image(pixels_of(record, format).permute({2, 0, 1}));
}

void check_only_images(const fs::path& folder, std::string_view format) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    LEVIN_CHECK(entry.is_directory() || image_codec_by_path(entry.path().filename().string()) ||
                    entry.path().filename() == kClassOrderFile,
                "[", format, "] \"", folder.string(), "\" is not replaced, since it holds more than images: \"",
                fs::relative(entry.path(), folder).string(), "\"");
}

bool write_unsynced(const fs::path& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) return false;
  if (fd < 0) fail_file("create", path, errno);
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      ::close(fd);
      fail_file("write", path, error);
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  if (::close(fd) != 0 && errno != EINTR) fail_file("write", path, errno);
  return true;
}

void sync_files(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_file("open folder", folder, errno);
  const int error = ::syncfs(fd) != 0 ? errno : 0;
  ::close(fd);
  if (error != 0) fail_file("sync folder", folder, error);
}

}  // namespace levin::detail
