#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/images/image_options.h"
#include "levin/io/records/records.h"

/// Formats of records. Each describes itself beside its reader (tar/tar.cpp) and has a row in the table of
/// record_formats.cpp. Whoever wants to know what a format is or holds asks the table.
namespace levin::detail {

using Paths = std::vector<std::filesystem::path>;

struct RecordFormat {
  /// RecordOptions::format: "tar".
  std::string_view name;
  /// Ends of file names, lower case; also those that are read, but not written.
  std::vector<std::string_view> ends = {};
  /// By the first 512 bytes of a file; null when they tell nothing.
  bool (*matches)(std::string_view head) = nullptr;
  /// Whether a folder is of this format; null when a folder never is.
  bool (*matches_folder)(const std::filesystem::path& folder) = nullptr;
  /// `paths` are the files of a pattern, sorted; exactly one unless `many`.
  std::unique_ptr<RecordReader> (*open)(const Paths& paths, const RecordOptions& options);
  std::unique_ptr<RecordWriter> (*create)(const std::filesystem::path& path, const RecordWriterOptions& options);
  /// Whether a pattern of several files is one reader.
  bool many = false;
  /// Whether a folder of such files and nothing else is read as all of them.
  bool many_in_folder = false;
  /// The field that every record has and that is all it has: "image" (with a label), "text"; empty: any fields.
  std::string_view only = {};
  /// What an image may be in it.
  bool holds_encoded = true, holds_raw = true;
  /// Whether raw pixels stay raw unless something else is asked for; else they are encoded.
  bool prefers_raw = false;
  /// The channels of its images.
  ImageMode mode = ImageMode::kUnchanged;
  /// Whether what is written is a folder that replaces the one before.
  bool replaces_folder = false;
  /// Whether this build has it. Without its library, open and create are Errors that name the package.
  bool (*available)() = [] { return true; };
};

RecordFormat tar_format();
RecordFormat tfrecord_format();
RecordFormat lmdb_format();
RecordFormat hdf5_format();
RecordFormat image_folder_format();
RecordFormat cifar10_format();
RecordFormat cifar100_format();
RecordFormat idx_format();
RecordFormat csv_format();
RecordFormat text_format();

/// In the order in which files and folders are looked at.
const std::vector<RecordFormat>& all_record_formats();
/// Null when there is none of that name.
const RecordFormat* find_record_format(std::string_view name);
/// An Error with the nearest name when there is none.
const RecordFormat& record_format(const std::string& name);
/// By the end of its name, in any case; null when that tells nothing.
const RecordFormat* record_format_by_end(const std::filesystem::path& path);
/// By what a file begins with; null when that tells nothing.
const RecordFormat* record_format_by_content(const std::filesystem::path& path);
/// What create_records writes: the format asked for or, of "auto", what the path says.
const RecordFormat& format_to_write(const std::string& path, const std::string& asked);

/// Formats whose library may be missing: twins no_lmdb.cpp, no_hdf5.cpp.
bool has_lmdb();
std::unique_ptr<RecordReader> open_lmdb(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordWriter> create_lmdb(const std::filesystem::path& path, const RecordWriterOptions& options);
bool has_hdf5();
std::unique_ptr<RecordReader> open_hdf5(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordWriter> create_hdf5(const std::filesystem::path& path, const RecordWriterOptions& options);

}  // namespace levin::detail
