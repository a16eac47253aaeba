#include <algorithm>
#include <charconv>
#include <chrono>

#include <fmt/format.h>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/record_index.h"
#include "levin/io/records/tfrecord/format.h"
#include "levin/io/records/tfrecord/tf_record.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// What compressed files may become in memory, all of a reader together.
constexpr uint64_t kMostInflated = uint64_t{8} << 30;

struct TfPlace {
  uint64_t offset, size;
};
using TfPlaces = std::vector<TfPlace>;

/// Lines "offset size", where sizes count the frame (as in the files of tfrecord2idx). They must cover
/// the file without a hole.
std::optional<TfPlaces> parse_tf_index(std::string_view lines, uint64_t file_size) {
  TfPlaces places;
  uint64_t next = 0;
  const char* at = lines.data();
  const char* end = at + lines.size();
  while (at != end) {
    uint64_t offset = 0, size = 0;
    const auto first = std::from_chars(at, end, offset);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
    const auto second = std::from_chars(first.ptr + 1, end, size);
    if (second.ec != std::errc() || offset != next || size < kTfFrameBytes || size > file_size - offset)
      return std::nullopt;
    places.push_back({offset, size - kTfFrameBytes});
    next = offset + size;
    at = second.ptr;
    while (at != end && (*at == '\n' || *at == '\r' || *at == ' ')) ++at;
  }
  if (next != file_size) return std::nullopt;
  return places;
}

/// The index that DALI's tfrecord2idx made, when it fits the file.
std::optional<TfPlaces> load_dali_index(const fs::path& path, uint64_t file_size) {
  auto longer = path;
  longer += ".idx";
  auto other = path;
  other.replace_extension(".idx");
  std::error_code error;
  for (const auto& file : {longer, other})
    if (fs::is_regular_file(file, error))
      if (auto places = parse_tf_index(read_file(file), file_size)) return places;
  return std::nullopt;
}

/// Inflates a gzip or zlib file whole.
std::string inflate_file(const FileReader& file, uint64_t most) {
  std::string out;
  z_stream stream{};
  LEVIN_CHECK(::inflateInit2(&stream, 15 + 32) == Z_OK, "[records] cannot start zlib");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::inflateEnd);
  std::vector<std::byte> in(256 << 10), block(1 << 20);
  uint64_t offset = 0;
  bool finished = false;
  while (offset < file.size() || stream.avail_in > 0) {
    if (stream.avail_in == 0) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(in.size(), file.size() - offset));
      file.read(offset, std::span(in).first(count));
      offset += count;
      stream.next_in = reinterpret_cast<Bytef*>(in.data());
      stream.avail_in = static_cast<uInt>(count);
    }
    if (finished) LEVIN_CHECK(::inflateReset(&stream) == Z_OK, "[records] cannot start zlib");  // gzip files may follow
    finished = false;
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int result = ::inflate(&stream, Z_NO_FLUSH);
    LEVIN_CHECK(result == Z_OK || result == Z_STREAM_END, "[records] cannot decompress \"", file.path().string(),
                "\": ", stream.msg ? stream.msg : "its data are damaged", " before byte ", offset);
    out.append(reinterpret_cast<const char*>(block.data()), block.size() - stream.avail_out);
    LEVIN_CHECK(out.size() <= most, "[records] \"", file.path().string(), "\" is more than ", kMostInflated,
                " bytes when decompressed; unpack it first (gunzip)");
    finished = result == Z_STREAM_END;
  }
  // The last block of output may still be waiting.
  while (!finished) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int result = ::inflate(&stream, Z_NO_FLUSH);
    LEVIN_CHECK(result == Z_OK || result == Z_STREAM_END, "[records] \"", file.path().string(),
                "\" is truncated: its compressed data end too early");
    out.append(reinterpret_cast<const char*>(block.data()), block.size() - stream.avail_out);
    LEVIN_CHECK(out.size() <= most, "[records] \"", file.path().string(), "\" is more than ", kMostInflated,
                " bytes when decompressed; unpack it first (gunzip)");
    finished = result == Z_STREAM_END;
  }
  out.shrink_to_fit();
  return out;
}

/// A file as its compression says: gzip and zlib are told from records by the checksum of the first length.
bool is_compressed(const FileReader& file) {
  std::array<char, kTfHeadBytes> head{};
  if (file.size() < 2) return false;
  const auto count = static_cast<size_t>(std::min<uint64_t>(head.size(), file.size()));
  file.read(0, std::as_writable_bytes(std::span(head).first(count)));
  if (is_tfrecord_head({head.data(), count})) return false;
  const auto a = static_cast<uint8_t>(head[0]), b = static_cast<uint8_t>(head[1]);
  return (a == 0x1f && b == 0x8b) || (a == 0x78 && (a * 256 + b) % 31 == 0);
}

struct TfFile {
  TfPlaces places;
  std::string inflated;  // empty: in the file
  bool in_memory = false;
};

TfFile open_tf_file(const fs::path& path) {
  const FileReader file(path);
  TfFile opened;
  if (is_compressed(file)) {
    opened.in_memory = true;
    opened.inflated = inflate_file(file, kMostInflated);
    scan_tfrecord(
        [&](uint64_t offset, std::span<std::byte> into) {
          std::memcpy(into.data(), opened.inflated.data() + offset, into.size());
        },
        opened.inflated.size(), path.string(),
        [&](uint64_t offset, uint64_t size) {
          opened.places.push_back({offset, size});
        });
    return opened;
  }
  if (const auto index = load_record_index(path, "tfrecord"))
    if (auto places = parse_tf_index(*index, file.size())) {
      opened.places = *std::move(places);
      return opened;
    }
  if (auto places = load_dali_index(path, file.size())) {
    opened.places = *std::move(places);
    return opened;
  }
  const auto start = std::chrono::steady_clock::now();
  scan_tfrecord([&](uint64_t offset, std::span<std::byte> into) { file.read(offset, into); }, file.size(),
                path.string(),
                [&](uint64_t offset, uint64_t size) {
                  opened.places.push_back({offset, size});
                });
  if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kIndexSeconds) {
    std::string lines;
    for (const auto& place : opened.places) lines += fmt::format("{} {}\n", place.offset, place.size + kTfFrameBytes);
    save_record_index(path, "tfrecord", lines);
  }
  return opened;
}

class TfRecordReader : public RecordReader {
 public:
  TfRecordReader(const Paths& paths, const RecordOptions& options)
      : files_(paths), verify_(options.verify), opened_(paths.size()) {
    parallel_for(0, static_cast<int64_t>(paths.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        opened_[static_cast<size_t>(i)] = open_tf_file(paths[static_cast<size_t>(i)]);
    });
    uint64_t inflated = 0;
    for (const auto& file : opened_) {
      begins_.push_back(size_);
      size_ += static_cast<int64_t>(file.places.size());
      inflated += file.inflated.size();
    }
    LEVIN_CHECK(inflated <= kMostInflated, "[records] \"", paths.front().string(), "\" and the files after it are ",
                inflated, " bytes when decompressed, at most ", kMostInflated, " are; unpack them first (gunzip)");
    classes_ = read_tf_classes(paths.front());
  }

  std::string_view format() const override { return "tfrecord"; }
  int64_t size() const override { return size_; }
  std::vector<std::string> classes() const override { return classes_; }

  std::string where(int64_t index) const override {
    const auto file = file_of(index);
    const auto within = static_cast<size_t>(index - begins_[file]);
    return fmt::format("{}: record {} at byte {}", files_.path(file).filename().string(), within,
                       opened_[file].places[within].offset);
  }

  Record read(int64_t index) const override {
    const auto file = file_of(index);
    const auto& opened = opened_[file];
    const auto& place = opened.places[static_cast<size_t>(index - begins_[file])];
    const auto bytes = static_cast<size_t>(place.size + kTfFrameBytes);
    thread_local std::vector<char> buffer;
    std::string_view frame;
    if (opened.in_memory) {
      frame = std::string_view(opened.inflated).substr(static_cast<size_t>(place.offset), bytes);
    } else {
      // A rare huge record is not to stay in every thread.
      constexpr size_t kKept = 16 << 20;
      if (buffer.capacity() > kKept && bytes <= kKept) std::vector<char>().swap(buffer);
      buffer.resize(bytes);
      files_.read(file, place.offset, std::as_writable_bytes(std::span(buffer)));
      frame = {buffer.data(), bytes};
    }
    const auto data = tfrecord_data(frame, verify_, files_.path(file).native(), place.offset);
    Record record;
    try {
      record = record_of_example(data);
    } catch (const Error& error) {
      throw Error(concat("[records] \"", files_.path(file).string(), "\": the record at byte ", place.offset,
                         " is no tf.train.Example: it ", error.what()));
    }
    if (record.key.empty()) record.key = numbered_key(index);
    return record;
  }

 private:
  size_t file_of(int64_t index) const {
    LEVIN_CHECK(index >= 0 && index < size_, "[records] record ", index, " was asked for, there are ", size_);
    return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin()) - 1;
  }

  RecordFiles files_;
  bool verify_;
  std::vector<TfFile> opened_;
  std::vector<int64_t> begins_;
  std::vector<std::string> classes_;
  int64_t size_ = 0;
};

class TfRecordWriter : public RecordWriter {
 public:
  TfRecordWriter(const fs::path& path, const RecordWriterOptions& options)
      : classes_(options.classes),
        shards_(
            path, options, [](FileWriter&) {}, [](FileWriter&) {}) {}

  void write(const Record& record) override {
    std::string frame;
    append_tfrecord(frame, example_of_record(record));
    shards_.next(frame.size()).write(frame);
  }
  void close() override {
    std::vector<std::pair<std::string, std::string>> beside;
    if (!classes_.empty()) beside.emplace_back(kTfLabels, write_tf_classes(classes_));
    shards_.close(beside);
  }

 private:
  std::vector<std::string> classes_;
  ShardWriter shards_;
};

std::unique_ptr<RecordReader> open_tfrecord(const Paths& paths, const RecordOptions& options) {
  return std::make_unique<TfRecordReader>(paths, options);
}

std::unique_ptr<RecordWriter> create_tfrecord(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<TfRecordWriter>(path, options);
}

}  // namespace

RecordFormat tfrecord_format() {
  return {.name = "tfrecord",
          .ends = {".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrecord.zlib"},
          .matches = is_tfrecord_head,
          .open = open_tfrecord,
          .create = create_tfrecord,
          .many = true,
          .many_in_folder = true};
}

}  // namespace levin::detail
