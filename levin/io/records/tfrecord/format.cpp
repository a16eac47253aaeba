#include "levin/io/records/tfrecord/format.h"

#include <bit>
#include <cstring>

#include "levin/core/checksum.h"
#include "levin/core/error.h"

namespace levin::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of TFRecord files are little-endian");

template <class T>
T tf_load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void tf_store(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

uint32_t tf_masked(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

bool tf_length_is_right(std::string_view head) {
  return tf_load<uint32_t>(head, 8) == tf_masked(head.substr(0, 8));
}

}  // namespace

void append_tfrecord(std::string& out, std::string_view data) {
  const size_t begin = out.size();
  tf_store(out, static_cast<uint64_t>(data.size()));
  tf_store(out, tf_masked(std::string_view(out).substr(begin, 8)));
  out += data;
  tf_store(out, tf_masked(data));
}

void scan_tfrecord(const ReadAt& read, uint64_t file_size, std::string_view where,
                   const std::function<void(uint64_t offset, uint64_t size)>& each) {
  RecordWindow window(read, file_size);
  uint64_t at = 0;
  while (at < file_size) {
    LEVIN_CHECK(file_size - at >= kTfFrameBytes, "[records] \"", where, "\" is truncated: the record at byte ", at,
                " has no whole head");
    const auto bytes = window.get(at, kTfHeadBytes);
    const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    LEVIN_CHECK(tf_length_is_right(head), "[records] \"", where, "\": the length of the record at byte ", at,
                " has a wrong checksum");
    const auto size = tf_load<uint64_t>(head, 0);
    LEVIN_CHECK(size <= file_size - at - kTfFrameBytes, "[records] \"", where, "\" is truncated: the record at byte ",
                at, " declares ", size, " bytes, the file has ", file_size - at - kTfFrameBytes);
    each(at, size);
    at += kTfFrameBytes + size;
  }
}

std::string_view tfrecord_data(std::string_view frame, bool verify, std::string_view where, uint64_t offset) {
  LEVIN_CHECK(frame.size() >= kTfFrameBytes && tf_load<uint64_t>(frame, 0) == frame.size() - kTfFrameBytes &&
                  tf_length_is_right(frame),
              "[records] \"", where, "\": the length of the record at byte ", offset, " is not what its index says");
  const auto data = frame.substr(kTfHeadBytes, frame.size() - kTfFrameBytes);
  LEVIN_CHECK(!verify || tf_load<uint32_t>(frame, frame.size() - 4) == tf_masked(data), "[records] \"", where,
              "\": the record at byte ", offset, " has a wrong checksum");
  return data;
}

bool is_tfrecord_head(std::string_view bytes) {
  return bytes.size() >= kTfHeadBytes && tf_length_is_right(bytes);
}

}  // namespace levin::detail
