#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

/// What a field of a record is: bytes or text, whole numbers, floats of 32 or of 64 bits, or an array (uint8 [H, W, C]
/// for raw pixels). Numbers that a file has as text (CSV, JSON) are of 64 bits.
using FieldValue = std::variant<std::string, std::vector<int64_t>, std::vector<float>, std::vector<double>, Tensor>;

/// One sample as it stands in a file, undecoded: named fields. The names are the same whatever the format:
///
///   "image"  an encoded image (the bytes of a PNG, say), or a Tensor of raw pixels
///   "label"  one whole number: the class
///   "text"   a line
///
/// and any others (columns of a table, further members of a tar, features of a TFRecord) under their own names.
struct Record {
  /// Unlike that of any other record of the file: "train/cat/001", "000042".
  std::string key;
  std::vector<std::pair<std::string, FieldValue>> fields;

  /// Null when there is none of that name.
  const FieldValue* find(std::string_view name) const;
  /// Sets or adds.
  void set(std::string_view name, FieldValue value);
};

/// A file or folder of samples, open for reading in any order. Threads may share one: read() is const and takes no lock
/// that another read holds for long. Everything read is checked; a bad record is an Error with the path and the place.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// One of record_formats(): "tar".
  virtual std::string_view format() const = 0;
  virtual int64_t size() const = 0;
  virtual Record read(int64_t index) const = 0;
  /// Names of the classes, by label; empty when the format does not know them.
  virtual std::vector<std::string> classes() const { return {}; }
  /// Where a record is, for errors: "cats/001.png", "train-00001.tar: 000042".
  virtual std::string where(int64_t index) const = 0;
};

/// A file or folder of samples being written. Nothing is at the destination before close(); without it nothing stays.
class RecordWriter {
 public:
  virtual ~RecordWriter() = default;
  virtual void write(const Record& record) = 0;
  virtual void close() = 0;
};

struct RecordOptions {
  /// The format; by default what the path looks like and what the file begins with.
  std::string format = "auto";
  /// Check the checksums of every record that is read (where the format has them).
  bool verify = true;
  /// Which part of a data set that has several (CIFAR, IDX): "train" or "test".
  std::string split = "train";
  /// Which of the named databases of an LMDB file; empty: the file has none.
  std::string database = {};
};

struct RecordWriterOptions {
  /// The format; by default what the end of the path says (.tar, .tfrecord, .lmdb, .h5, .csv, .txt; a plain name is a
  /// folder of images).
  std::string format = "auto";
  /// Names of the classes, by label, where the format can keep them.
  std::vector<std::string> classes = {};
  /// A new file after N records or bytes, for formats of several files (tar, tfrecord); 0: one file.
  int64_t shard_records = 0;
  int64_t shard_bytes = 0;
  /// Replace what stands at the destination.
  bool overwrite = false;
  /// Which part of a data set this is, for formats that name their files after it (CIFAR, IDX): "train" or "test".
  /// Both parts may be written into one folder.
  std::string split = "train";
};

/// Opens a file or folder for reading; patterns of several files ("train-{000..146}.tar", "train-*.tfrecord") are one
/// reader. An Error says what is not there, not known, or left out of this build and which package it needs.
std::unique_ptr<RecordReader> open_records(const std::string& path, const RecordOptions& options = {});
std::unique_ptr<RecordWriter> create_records(const std::string& path, const RecordWriterOptions& options = {});

/// The formats that this build reads and writes.
std::vector<std::string> record_formats();

}  // namespace levin
