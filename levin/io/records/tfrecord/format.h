#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "levin/io/records/record_window.h"

/// The frame of TFRecord files: length (8 bytes), its checksum, the data, their checksum. Nothing here knows what the
/// data are.
namespace levin::detail {

constexpr uint64_t kTfHeadBytes = 12, kTfFrameBytes = 16;

/// Appends one record.
void append_tfrecord(std::string& out, std::string_view data);

/// Walks over the heads and hands on (offset of the frame, bytes of data). An Error with `where` and the byte when a
/// length has a wrong checksum or leads out of the file.
void scan_tfrecord(const ReadAt& read, uint64_t file_size, std::string_view where,
                   const std::function<void(uint64_t offset, uint64_t size)>& each);

/// The data within a frame of the given size at `offset` of the file; an Error when the length or, with `verify`, the
/// checksum of the data is not right.
std::string_view tfrecord_data(std::string_view frame, bool verify, std::string_view where, uint64_t offset);

/// Whether a file that begins like that is a TFRecord file: the checksum of the first length is right.
bool is_tfrecord_head(std::string_view bytes);

}  // namespace levin::detail
