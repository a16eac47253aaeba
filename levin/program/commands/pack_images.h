#pragma once

#include <cstdint>
#include <string>

#include "levin/io/records/record_formats.h"

namespace levin::cli {

/// What becomes of the images on the way from one file to another.
struct PackImages {
  /// A kind of images that is written (image_codec.h: "png", "jpeg") or "raw"; empty: as they are, where the format
  /// that is written can hold it.
  std::string reencode = {};
  /// The shorter side; 0: as it is.
  int64_t resize = 0;
  /// Of JPEG.
  int quality = 95;
  /// What is written.
  const levin::detail::RecordFormat* format = nullptr;
};

/// An Error in one line when records like this one cannot be written in that format.
void check_packable(const Record& first, const PackImages& images, const std::string& from);

/// Decodes, resizes and encodes what has to be.
void prepare_image(Record& record, const PackImages& images);

/// Bytes of the content of a record.
uint64_t content_bytes(const Record& record);

}  // namespace levin::cli
