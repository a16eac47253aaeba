#pragma once

#include <filesystem>
#include <memory>

#include "levin/io/records/records.h"

namespace levin::detail {

/// Stands in a folder of images whose classes are numbered in another order than that of their names: a name a line, by
/// label.
inline constexpr const char* kClassOrderFile = "levin-classes.txt";

/// The writer, in image_folder_write.cpp.
std::unique_ptr<RecordWriter> create_image_folder(const std::filesystem::path& path,
                                                  const RecordWriterOptions& options);

}  // namespace levin::detail
