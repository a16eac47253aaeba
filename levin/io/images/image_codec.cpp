#include "levin/io/images/image_codec.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "levin/core/words.h"

namespace levin::detail {
namespace {

/// Known, so that their files keep their names and are not passed over in silence.
struct UndecodedImage {
  std::string_view extension;
  /// Empty: bytes are not recognized.
  std::string_view magic;
  size_t shortest = 0;
};
constexpr std::array kUndecoded{
    UndecodedImage{"gif", "GIF8"}, UndecodedImage{"bmp", "BM", 27}, UndecodedImage{"ppm", ""},
    UndecodedImage{"pgm", ""},     UndecodedImage{"pbm", ""},       UndecodedImage{"tif", ""},
    UndecodedImage{"tiff", ""},
};

/// "a/B.PNG" -> "png"
std::string extension_of(std::string_view path) {
  const auto dot = path.rfind('.');
  std::string end(dot == std::string_view::npos ? "" : path.substr(dot + 1));
  std::transform(end.begin(), end.end(), end.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return end;
}

}  // namespace

const std::vector<ImageCodec>& image_codecs() {
  static const std::vector<ImageCodec> table{
      png_codec(),
      jpeg_codec(),
      webp_codec(),
  };
  return table;
}

const ImageCodec* image_codec_of(std::span<const std::byte> file) {
  for (const auto& codec : image_codecs())
    if (codec.matches(file)) return &codec;
  return nullptr;
}

const ImageCodec* find_image_codec(std::string_view name) {
  for (const auto& codec : image_codecs())
    if (codec.name == name) return &codec;
  return nullptr;
}

const ImageCodec* image_codec_by_path(std::string_view path) {
  const auto end = extension_of(path);
  for (const auto& codec : image_codecs())
    for (const auto extension : codec.extensions)
      if (end == extension) return &codec;
  return nullptr;
}

std::string image_titles(std::string_view between) {
  std::vector<std::string> titles;
  for (const auto& codec : image_codecs()) titles.emplace_back(codec.title);
  return join(titles, between);
}

std::string image_extensions() {
  std::vector<std::string> ends;
  for (const auto& codec : image_codecs())
    for (const auto extension : codec.extensions) ends.push_back("." + std::string(extension));
  return join(ends);
}

std::vector<std::string> written_image_kinds() {
  std::vector<std::string> names;
  for (const auto& codec : image_codecs())
    if (codec.encode) names.emplace_back(codec.name);
  return names;
}

std::string_view image_extension(std::string_view bytes) {
  if (const auto* codec = image_codec_of(bytes)) return codec->extensions.front();
  for (const auto& [extension, magic, shortest] : kUndecoded)
    if (!magic.empty() && bytes.size() >= shortest && bytes.starts_with(magic)) return extension;
  return {};
}

bool is_undecoded_image(std::string_view path) {
  const auto end = extension_of(path);
  return std::any_of(kUndecoded.begin(), kUndecoded.end(), [&](const auto& image) { return image.extension == end; });
}

}  // namespace levin::detail
