#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
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
#include "levin/program/flags.h"
#include "levin/trainer/signals.h"

namespace levin::cli {
namespace fs = std::filesystem;
namespace {

struct PackFlags {
  std::string source, destination, from = "auto", to = "auto", split = "train", database;
  int64_t shard_records = 0, shard_bytes = 0;
  int workers = -1;
  bool overwrite = false;
  PackImages images;
};

bool parse_pack(const std::vector<std::string>& words, PackFlags& flags) {
  CLI::App app("Turns a data set from one format into another.", "levin pack");
  const auto formats = join(record_formats(), "|");
  app.add_option("SRC", flags.source, "file, pattern of files or folder to read");
  app.add_option("DST", flags.destination, "file or folder to write; its end tells the format (.tar, .tfrecord, ...)");
  app.add_option("--from", flags.from, "format of SRC; by itself what it looks like: " + formats)->type_name("FORMAT");
  app.add_option("--to", flags.to, "format of DST")->type_name("FORMAT");
  app.add_option("--database", flags.database, "named database of an LMDB file")->type_name("NAME");
  app.add_option("--split", flags.split, "part of a data set that has several: train or test")->type_name("PART");
  app.add_option("--shard-records", flags.shard_records, "a new file after so many records")->type_name("N");
  app.add_option("--shard-bytes", flags.shard_bytes, "a new file after so many bytes")->type_name("N");
  app.add_option("--workers", flags.workers, "threads that read, decode and encode (one for each core)")
      ->type_name("N");
  app.add_option("--reencode", flags.images.reencode,
                 "images as " + join(detail::written_image_kinds()) + " or raw pixels")
      ->type_name("KIND");
  app.add_option("--resize", flags.images.resize, "pixels of the shorter side of each image")->type_name("N");
  app.add_option("--quality", flags.images.quality, "of JPEG, 1 to 100 (95)")->type_name("N");
  app.add_flag("--overwrite", flags.overwrite, "replace what stands at DST");
  if (!parse_flags(app, words)) return false;

  LEVIN_CHECK(!flags.source.empty() && !flags.destination.empty(),
              "[levin pack] name what to read and what to write: levin pack SRC DST");
  auto kinds = detail::written_image_kinds();
  kinds.emplace_back("raw");
  if (!flags.images.reencode.empty() && std::find(kinds.begin(), kinds.end(), flags.images.reencode) == kinds.end())
    fail_unknown("levin pack", "--reencode", flags.images.reencode, kinds);
  const std::vector<std::string> parts{"train", "test"};
  if (std::find(parts.begin(), parts.end(), flags.split) == parts.end())
    fail_unknown("levin pack", "--split", flags.split, parts);
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"--shard-records", flags.shard_records},
                                                              {"--shard-bytes", flags.shard_bytes},
                                                              {"--resize", flags.images.resize}})
    LEVIN_CHECK(value >= 0, "[levin pack] ", name, " ", value, " is not allowed (0 or more)");
  LEVIN_CHECK(flags.images.quality >= 1 && flags.images.quality <= 100, "[levin pack] --quality ", flags.images.quality,
              " is not allowed (1 to 100)");
  LEVIN_CHECK(flags.workers >= -1 && flags.workers <= 1024, "[levin pack] --workers ", flags.workers,
              " is not allowed (0 to 1024)");
  return true;
}

/// A folder that is replaced takes with it what it holds.
void check_apart(const PackFlags& flags) {
  std::error_code error;
  const auto source = fs::weakly_canonical(flags.source, error);
  const auto destination = fs::weakly_canonical(flags.destination, error);
  const auto end = std::mismatch(destination.begin(), destination.end(), source.begin(), source.end()).first;
  LEVIN_CHECK(source != destination && (end != destination.end() || !flags.images.format->replaces_folder),
              "[levin pack] \"", flags.source, "\" is, or is in, \"", flags.destination, "\", which would be replaced");
}

}  // namespace

int pack(const std::vector<std::string>& words, const Args&) {
  PackFlags flags;
  if (!parse_pack(words, flags)) return 0;
  const auto start = std::chrono::steady_clock::now();
  const auto source =
      open_records(flags.source, {.format = flags.from, .split = flags.split, .database = flags.database});
  const int64_t count = source->size();
  LEVIN_CHECK(count > 0, "[levin pack] \"", flags.source, "\" has no records");
  flags.images.format = &detail::format_to_write(flags.destination, flags.to);
  check_apart(flags);
  check_packable(source->read(0), flags.images, std::string(source->format()));

  const detail::SignalFlags signals(false);
  at::set_num_threads(1);  // the workers are the parallelism
  const auto writer = create_records(flags.destination, {.format = std::string(flags.images.format->name),
                                                         .classes = source->classes(),
                                                         .shard_records = flags.shard_records,
                                                         .shard_bytes = flags.shard_bytes,
                                                         .expected = count,
                                                         .overwrite = flags.overwrite,
                                                         .split = flags.split});
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  OrderedRecords records(count, flags.workers < 0 ? cores : flags.workers, [&](int64_t index) {
    Record record = source->read(index);
    try {
      prepare_image(record, flags.images);
    } catch (const std::exception& error) {
      throw Error(fmt::format("[levin pack] {}: {}", source->where(index), one_line(error)));
    }
    return record;
  });
  uint64_t bytes = 0;
  {
    ProgressBar bar(fmt::format("{} to {}", source->format(), flags.images.format->name), count, {.unit = "rec"});
    for (int64_t i = 0; i < count; ++i) {
      if (const int signal = detail::SignalFlags::pending(); signal != 0) {
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
  std::puts(fmt::format("{}: {} records, {} in {:.1f} s ({} to {})", flags.destination, count,
                        format_bytes(static_cast<double>(bytes)), seconds.count(), source->format(),
                        flags.images.format->name)
                .c_str());
  return 0;
}

}  // namespace levin::cli
