#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "levin/io/records/records.h"

/// The variants behind open_records and create_records, one source each; records.cpp has the one table of them.
/// `paths` are the files of a pattern, sorted; most formats take exactly one. A reader of a library that this build
/// lacks is an Error (no_lmdb.cpp, no_hdf5.cpp).
namespace levin::detail {

using Paths = std::vector<std::filesystem::path>;

std::unique_ptr<RecordReader> open_tar(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_tfrecord(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_lmdb(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_hdf5(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordWriter> create_tar(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_tfrecord(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_lmdb(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_hdf5(const std::filesystem::path& path, const RecordWriterOptions& options);

/// The format that create_records writes: the one that was asked for or, of "auto", what the path says.
std::string format_to_write(const std::string& path, const std::string& asked);

/// Whether this build has them.
bool has_lmdb();
bool has_hdf5();

std::unique_ptr<RecordReader> open_image_folder(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_cifar(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_idx(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_csv(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordReader> open_text(const Paths& paths, const RecordOptions& options);
std::unique_ptr<RecordWriter> create_image_folder(const std::filesystem::path& path,
                                                  const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_cifar(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_idx(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_csv(const std::filesystem::path& path, const RecordWriterOptions& options);
std::unique_ptr<RecordWriter> create_text(const std::filesystem::path& path, const RecordWriterOptions& options);

}  // namespace levin::detail
