#include <charconv>
#include <chrono>
#include <map>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/core/words.h"
#include "levin/io/decompress.h"
#include "levin/io/records/record_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/record_index.h"
#include "levin/io/records/tar/tar_format.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// Members of one sample that lie this close together are read at once.
constexpr uint64_t kTarReadAtOnce = 64 << 10;

/// What an index keeps of an archive: a line "offset size name" for every regular file.
std::optional<std::vector<TarMember>> parse_tar_index(std::string_view lines, uint64_t file_size) {
  std::vector<TarMember> members;
  while (!lines.empty()) {
    const auto line = lines.substr(0, lines.find('\n'));
    TarMember member;
    const char* end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), end, member.offset);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
    const auto second = std::from_chars(first.ptr + 1, end, member.size);
    if (second.ec != std::errc() || second.ptr == end || *second.ptr != ' ') return std::nullopt;
    if (member.offset > file_size || member.size > file_size - member.offset) return std::nullopt;
    member.name.assign(second.ptr + 1, end);
    members.push_back(std::move(member));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
  }
  return members;
}

std::vector<TarMember> tar_members(const fs::path& path) {
  const FileReader file(path);
  if (const auto index = load_record_index(path, "tar"))
    if (auto members = parse_tar_index(*index, file.size())) return *std::move(members);
  std::vector<TarMember> members;
  const auto start = std::chrono::steady_clock::now();
  scan_tar([&](uint64_t offset, std::span<std::byte> into) { file.read(offset, into); }, file.size(), path.string(),
           [&](TarMember&& member) { members.push_back(std::move(member)); });
  if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kIndexSeconds) {
    std::string lines;
    for (const auto& member : members) {
      if (member.name.find('\n') != std::string::npos) return members;
      lines += fmt::format("{} {} {}\n", member.offset, member.size, member.name);
    }
    save_record_index(path, "tar", lines);
  }
  return members;
}

/// What one compressed archive may become; shards of WebDataset have 3 GB.
constexpr uint64_t kMostUnpackedTar = uint64_t{32} << 30;

class TarReader : public RecordReader {
 public:
  explicit TarReader(const Paths& paths) : files_(paths), unpacked_at_(paths.size()) {
    std::vector<std::vector<TarMember>> members(paths.size());
    unpack(paths, members);
    parallel_for(0, static_cast<int64_t>(paths.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (const auto file = static_cast<size_t>(i); !unpacked_at_[file]) members[file] = tar_members(paths[file]);
    });
    for (size_t file = 0; file < paths.size(); ++file) {
      add_file(static_cast<uint32_t>(file), members[file]);
      std::vector<TarMember>().swap(members[file]);
    }
    samples_.push_back({keys_.size(), 0, parts_.size()});
    size_ = static_cast<int64_t>(samples_.size()) - 1;
  }

  std::string_view format() const override { return "tar"; }
  int64_t size() const override { return size_; }
  std::vector<std::string> classes() const override { return classes_; }

  std::string where(int64_t index) const override {
    const auto& sample = at(index);
    return files_.path(sample.file).filename().string() + ": " + shown(key(index));
  }

  Record read(int64_t index) const override {
    const auto& sample = at(index);
    const size_t first = sample.part, last = samples_[static_cast<size_t>(index) + 1].part;
    Record record;
    record.key = key(index);
    record.fields.reserve(last - first + 1);
    const uint64_t begin = parts_[first].offset, end = parts_[last - 1].offset + parts_[last - 1].size;
    if (end - begin <= kTarReadAtOnce) {
      thread_local std::vector<char> together;
      together.resize(static_cast<size_t>(end - begin));
      read(sample.file, begin, std::as_writable_bytes(std::span(together)));
      for (size_t i = first; i < last; ++i)
        add_member(record, types_[parts_[i].type],
                   std::string(together.data() + (parts_[i].offset - begin), static_cast<size_t>(parts_[i].size)),
                   *this, index);
    } else {
      for (size_t i = first; i < last; ++i)
        add_member(record, types_[parts_[i].type], read(sample.file, parts_[i].offset, parts_[i].size), *this, index);
    }
    find_label(record, classes_);
    return record;
  }

 private:
  struct Part {
    uint64_t offset, size;
    uint32_t type;
  };
  struct Sample {
    uint64_t key;
    uint32_t file;
    uint64_t part;
  };

  /// A compressed archive can only be read from its first byte on, so its content is put where any part can be reached.
  void unpack(const Paths& paths, std::vector<std::vector<TarMember>>& members) {
    for (size_t i = 0; i < paths.size(); ++i) {
      const FileReader file(paths[i]);
      const auto kind = compression_of(file);
      if (kind == Compression::kNone) continue;
      if (!unpacked_) unpacked_ = std::make_unique<UnpackedFiles>();
      const auto place = unpacked_->add(file, kind, kMostUnpackedTar);
      unpacked_at_[i] = place.begin;
      scan_tar([&](uint64_t offset, std::span<std::byte> into) { unpacked_->read(place.begin + offset, into); },
               place.size, paths[i].string(), [&](TarMember&& member) { members[i].push_back(std::move(member)); });
    }
  }

  void read(size_t file, uint64_t offset, std::span<std::byte> into) const {
    if (unpacked_at_[file])
      unpacked_->read(*unpacked_at_[file] + offset, into);
    else
      files_.read(file, offset, into);
  }
  std::string read(size_t file, uint64_t offset, uint64_t size) const {
    std::string bytes(size, '\0');
    read(file, offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  const Sample& at(int64_t index) const {
    LEVIN_CHECK(index >= 0 && index < size_, "[records] record ", index, " was asked for, there are ", size_);
    return samples_[static_cast<size_t>(index)];
  }
  std::string_view key(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    return std::string_view(keys_).substr(samples_[i].key, samples_[i + 1].key - samples_[i].key);
  }

  uint32_t type_of_extension(std::string_view extension) {
    std::string lower(extension);
    for (char& c : lower)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const auto [found, added] = extensions_.try_emplace(lower, static_cast<uint32_t>(types_.size()));
    if (added) types_.push_back(member_type(lower));
    return found->second;
  }

  void add_file(uint32_t file, const std::vector<TarMember>& members) {
    std::optional<std::string_view> open;  // key of the sample that members are added to; none across files
    for (const auto& member : members) {
      if (member.name == "__classes__" && classes_.empty() && member.size <= (64 << 20))
        classes_ = split_classes(read(file, member.offset, member.size));
      const auto name = split_tar_name(member.name);
      if (!name) continue;
      if (open != name->key) {
        samples_.push_back({keys_.size(), file, parts_.size()});
        keys_ += name->key;
        open = name->key;
      }
      const Part part{member.offset, member.size, type_of_extension(name->extension)};
      for (size_t i = samples_.back().part; i < parts_.size(); ++i)
        LEVIN_CHECK(parts_[i].type != part.type, "[records] \"", files_.path(file).string(), "\" has two members \"",
                    shown(member.name), "\" in one sample, the second at byte ", member.offset);
      parts_.push_back(part);
    }
  }

  RecordFiles files_;
  std::vector<std::optional<uint64_t>> unpacked_at_;  // of compressed files: where their content begins
  std::unique_ptr<UnpackedFiles> unpacked_;
  std::string keys_;  // one after the other
  std::vector<Sample> samples_;
  std::vector<Part> parts_;
  std::vector<MemberType> types_;
  std::map<std::string, uint32_t> extensions_;
  std::vector<std::string> classes_;
  int64_t size_ = 0;
};

class TarWriter : public RecordWriter {
 public:
  TarWriter(const fs::path& path, const RecordWriterOptions& options)
      : classes_(join_classes(options.classes)),
        shards_(
            path, options, [this](FileWriter& file) { begin(file); }, [](FileWriter& file) { finish(file); }) {}

  void write(const Record& record) override {
    const auto key = member_key(record, shards_.records());
    LEVIN_CHECK(key != last_key_, "[records] two records in a row have the key \"", shown(key), "\"");
    const auto members = members_of(record);
    std::vector<std::string> headers;
    uint64_t bytes = 0;
    for (const auto& [extension, content] : members) {
      headers.push_back(tar_header(key + "." + extension, content.size()));
      bytes += headers.back().size() + content.size() + tar_padding(content.size());
    }
    auto& file = shards_.next(bytes);
    for (size_t i = 0; i < members.size(); ++i) put(file, headers[i], members[i].second);
    last_key_ = key;
  }
  void close() override { shards_.close(); }

 private:
  static void put(FileWriter& file, std::string_view header, std::string_view content) {
    file.write(header);
    file.write(content);
    file.write(std::string(tar_padding(content.size()), '\0'));
  }
  /// WebDataset skips names of this form.
  void begin(FileWriter& file) {
    if (!classes_.empty()) put(file, tar_header("__classes__", classes_.size()), classes_);
  }
  /// Two empty blocks, and more up to a multiple of the size in which tapes were written.
  static void finish(FileWriter& file) {
    constexpr uint64_t kTarRecord = 10240;
    const uint64_t end = (file.size() + 1024 + kTarRecord - 1) / kTarRecord * kTarRecord;
    file.write(std::string(static_cast<size_t>(end - file.size()), '\0'));
  }

  std::string classes_;
  std::string last_key_;
  ShardWriter shards_;
};

std::unique_ptr<RecordReader> open_tar(const Paths& paths, const RecordOptions&) {
  return std::make_unique<TarReader>(paths);
}

std::unique_ptr<RecordWriter> create_tar(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<TarWriter>(path, options);
}

}  // namespace

RecordFormat tar_format() {
  return {.name = "tar",
          .ends = {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"},
          .matches = [](std::string_view head) { return head.size() > 262 && head.substr(257, 5) == "ustar"; },
          .open = open_tar,
          .create = create_tar,
          .many = true,
          .many_in_folder = true};
}

}  // namespace levin::detail
