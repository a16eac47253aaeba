#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/records.h"
#include "levin/program/command.h"
#include "levin/program/commands/ordered_records.h"
#include "levin/program/commands/pack_images.h"
#include "levin/trainer/signals.h"

namespace levin::cli {
namespace fs = std::filesystem;
namespace {

struct Pack {
  std::string source, destination, from = "auto", to = "auto", split = "train", database;
  int64_t shard_records = 0;
  ByteCount shard_bytes;
  int workers = -1;
  bool overwrite = false;
  PackImages images;

  void describe(Flags& flags) {
    auto formats = record_formats();
    formats.insert(formats.begin(), "auto");
    flags.argument("SRC", source, "file, glob of files or folder to read");
    flags.argument("DST", destination, "file or folder to write; its ending sets the format (.tar, .tfrecord, ...)");
    flags.flag("from", from, "format of SRC; auto detects it", "FORMAT", formats);
    flags.flag("to", to, "format of DST; auto is by its ending", "FORMAT", formats);
    flags.flag("database", database, "named database of an LMDB file", "NAME");
    flags.flag("split", split, "split to read, of a dataset that has several", "SPLIT", {"train", "test"});
    flags.flag("shard-records", shard_records, "records per file; 0 writes one file", "N");
    flags.flag("shard-bytes", shard_bytes, "bytes per file (1GB, 500MB)", "N");
    flags.flag("workers", workers, "threads that read, decode and encode; -1 is one per core", "N");
    auto kinds = levin::detail::written_image_kinds();
    kinds.emplace_back("raw");
    flags.flag("reencode", images.reencode, "encode all images in this format [as they are]", "FORMAT", kinds);
    flags.flag("resize", images.resize, "resize images: pixels of the shorter side; 0 keeps the size", "N");
    flags.flag("quality", images.quality, "JPEG quality, 1 to 100", "N");
    flags.flag("overwrite", overwrite, "replace DST");
  }

  int run() {
    check();
    const auto start = std::chrono::steady_clock::now();
    const auto reader = open_records(source, {.format = from, .split = split, .database = database});
    const int64_t count = reader->size();
    LEVIN_CHECK(count > 0, "[levin pack] \"", source, "\" has no records");
    images.format = &levin::detail::format_to_write(destination, to);
    check_apart();
    check_packable(reader->read(0), images, std::string(reader->format()));

    const levin::detail::SignalFlags signals(false);
    at::set_num_threads(1);  // the workers are the parallelism
    const auto writer = create_records(destination, {.format = std::string(images.format->name),
                                                     .classes = reader->classes(),
                                                     .shard_records = shard_records,
                                                     .shard_bytes = static_cast<int64_t>(shard_bytes.bytes),
                                                     .overwrite = overwrite,
                                                     .split = split});
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    OrderedRecords records(count, workers < 0 ? cores : workers, [&](int64_t index) {
      Record record = reader->read(index);
      try {
        prepare_image(record, images);
      } catch (const std::exception& error) {
        throw Error(fmt::format("[levin pack] {}: {}", reader->where(index), one_line(error)));
      }
      return record;
    });
    uint64_t bytes = 0;
    {
      ProgressBar bar(fmt::format("{} to {}", reader->format(), images.format->name), count, {.unit = "rec"});
      for (int64_t i = 0; i < count; ++i) {
        if (const int signal = levin::detail::SignalFlags::pending(); signal != 0) {
          bar.discard();
          throw Interrupted(fmt::format("[levin pack] stopped after {} of {} records; nothing was written", i, count),
                            signal);
        }
        const Record record = records.next();
        bytes += content_bytes(record);
        writer->write(record);
        bar.advance();
      }
    }
    writer->close();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::puts(fmt::format("{}: {}, {} in {:.1f} s ({} to {})", destination, counted(count, "record"),
                          format_bytes(static_cast<double>(bytes)), seconds.count(), reader->format(),
                          images.format->name)
                  .c_str());
    return 0;
  }

 private:
  void check() const {
    const std::vector<std::pair<const char*, int64_t>> counts{{"--shard-records", shard_records},
                                                              {"--resize", images.resize}};
    for (const auto& [name, value] : counts)
      LEVIN_CHECK(value >= 0, "[levin pack] ", name, " ", value, " is not allowed (0 or more)");
    LEVIN_CHECK(images.quality >= 1 && images.quality <= 100, "[levin pack] --quality ", images.quality,
                " is not allowed (1 to 100)");
    LEVIN_CHECK(workers >= -1 && workers <= 1024, "[levin pack] --workers ", workers, " is not allowed (0 to 1024)");
  }

  /// Replacing a folder deletes what is in it.
  void check_apart() const {
    std::error_code error;
    const auto reads = fs::weakly_canonical(source, error);
    const auto writes = fs::weakly_canonical(destination, error);
    const auto end = std::mismatch(writes.begin(), writes.end(), reads.begin(), reads.end()).first;
    LEVIN_CHECK(reads != writes && (end != writes.end() || !images.format->replaces_folder), "[levin pack] \"", source,
                "\" is, or is in, \"", destination, "\", which would be replaced");
  }
};

}  // namespace

Command pack_command() {
  return make_command<Pack>("pack", "convert a dataset to another file format");
}

}  // namespace levin::cli
