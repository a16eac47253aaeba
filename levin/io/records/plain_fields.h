#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "levin/io/images/image.h"
#include "levin/io/records/records.h"

/// What the plain formats (folders of images, CIFAR, IDX, CSV, text) have in common. `format` stands in the errors.
namespace levin::detail {

/// An Error when there is no such record.
void check_index(int64_t index, int64_t size, std::string_view format, const std::filesystem::path& path);

/// The one whole number of the field "label" (or another); nothing when there is no such field.
std::optional<int64_t> label_of(const Record& record, std::string_view format, std::string_view field = "label");

/// The pixels of the field "image", uint8 [H, W, C]; decodes what is encoded. An Error when there is none.
Tensor pixels_of(const Record& record, std::string_view format, ImageMode mode = ImageMode::kUnchanged);
/// The image as the bytes of a file; raw pixels become a PNG.
std::string encoded_of(const Record& record, std::string_view format);
/// uint8 pixels [H, W] or [H, W, C] as [C, H, W], the shape that codecs and transforms speak; shares their memory. An
/// Error when they are no pixels.
Tensor channels_first(const Tensor& pixels, std::string_view format);

/// Replacing a folder deletes it: an Error when it holds more than images (and lists of their classes).
void check_only_images(const std::filesystem::path& folder, std::string_view format);

/// Writes a new file without waiting until it is on the disk: of many, sync_files() waits for all at once. False when
/// there is one of that name.
bool write_unsynced(const std::filesystem::path& path, std::string_view bytes);
void sync_files(const std::filesystem::path& folder);

}  // namespace levin::detail
