#include "levin/io/images/jpeg_head.h"

#include <algorithm>
#include <cstring>

namespace levin::detail {
namespace {

class JpegBytes {
 public:
  explicit JpegBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  int operator[](size_t at) const { return at < bytes_.size() ? std::to_integer<int>(bytes_[at]) : -1; }
  size_t size() const { return bytes_.size(); }
  bool begins(const char* text, size_t count) const {
    return bytes_.size() >= count && std::memcmp(bytes_.data(), text, count) == 0;
  }

 private:
  std::span<const std::byte> bytes_;
};

// What programs write behind the last marker is short.
bool ends_as_image(std::span<const std::byte> file, size_t from) {
  constexpr size_t kMostBehind = 4096;
  const size_t last = std::max(from, file.size() - std::min(file.size(), kMostBehind));
  for (size_t at = file.size(); at >= last + 2; --at)
    if (file[at - 2] == std::byte{0xff} && file[at - 1] == std::byte{0xd9}) return true;
  return false;
}

bool read_frame_components(const JpegBytes& data, JpegHead& head, char (&names)[4]) {
  head.bit_depth = data[0];
  head.height = data[1] << 8 | data[2];
  head.width = data[3] << 8 | data[4];
  head.components = data[5];
  if (head.components < 1 || head.components > 4) return false;
  if (data.size() < 6 + 3 * static_cast<size_t>(head.components)) return false;
  for (int i = 0; i < head.components; ++i) {
    const auto at = 6 + 3 * static_cast<size_t>(i);
    names[i] = static_cast<char>(data[at]);
    head.across[i] = data[at + 1] >> 4;
    head.down[i] = data[at + 1] & 15;
  }
  return head.height > 0 && head.width > 0;
}

}  // namespace

std::optional<JpegHead> jpeg_head(std::span<const std::byte> file) {
  const JpegBytes bytes(file);
  if (!bytes.begins("\xff\xd8\xff", 3)) return {};
  JpegHead head;
  char names[4] = {};
  bool jfif = false;
  int adobe = -1;
  for (size_t at = 2;;) {
    // Junk between markers is for libjpeg to judge.
    if (bytes[at] != 0xff) return {};
    while (bytes[at] == 0xff) ++at;
    const int marker = bytes[at++];
    if (marker <= 0x01 || (marker >= 0xd0 && marker <= 0xd9) || at + 2 > file.size()) return {};
    const auto length = static_cast<size_t>(bytes[at] << 8 | bytes[at + 1]);
    if (length < 2 || file.size() - at < length) return {};
    const JpegBytes data(file.subspan(at + 2, length - 2));
    at += length;
    if (marker == 0xda) {
      head.is_interleaved = head.frame != 0 && data[0] == head.components;
      head.is_whole = ends_as_image(file, at);
      break;
    }
    if (marker == 0xe0 && data.begins("JFIF\0", 5)) jfif = true;
    if (marker == 0xee && data.size() >= 12 && data.begins("Adobe", 5)) adobe = data[11];
    if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
      if (head.frame != 0 || !read_frame_components(data, head, names)) return {};
      head.frame = marker;
    }
  }
  if (head.frame == 0) return {};
  if (head.components == 3 && !jfif)
    head.is_rgb = adobe >= 0 ? adobe == 0 : names[0] == 'R' && names[1] == 'G' && names[2] == 'B';
  return head;
}

}  // namespace levin::detail
