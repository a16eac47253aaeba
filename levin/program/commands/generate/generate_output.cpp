#include "levin/program/commands/generate/generate_output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 20;

}  // namespace

GenerateOutput::GenerateOutput(std::string path, bool overwrite, bool resume)
    : path_(std::move(path)), overwrite_(overwrite), resume_(resume) {}

GenerateOutput::~GenerateOutput() {
  if (fd_ < 0 || !is_file()) return;
  ::close(fd_);
  // Of a run that has given nothing yet there is nothing to resume.
  if (is_whole_ || has_lines_) return;
  std::error_code ignored;
  fs::remove(part(), ignored);
  fs::remove(part_settings(), ignored);
}

bool GenerateOutput::is_special() const {
  const auto kind = fs::status(path_).type();
  return kind != fs::file_type::not_found && kind != fs::file_type::regular && kind != fs::file_type::directory;
}

bool GenerateOutput::is_file() const {
  return path_ != "-" && !is_special();
}

void GenerateOutput::check() const {
  if (!is_file()) {
    LEVIN_CHECK(!resume_, "[levin generate] --resume needs a file as OUTPUT: \"", path_, "\" is written as lines come");
    return;
  }
  check_destination("levin generate", path_, OutputKind::kFile, overwrite_, "--overwrite");
  const auto folder = fs::absolute(path_).parent_path();
  LEVIN_CHECK(fs::is_directory(folder), "[levin generate] OUTPUT \"", path_, "\": there is no folder \"",
              folder.string(), "\"");
  check_writable(folder);
  LEVIN_CHECK(resume_ || overwrite_ || !fs::exists(part()), "[levin generate] \"", part(),
              "\" is there, of a run that did not end: --resume continues it, --overwrite begins from the start");
}

void GenerateOutput::check_settings(const RunSettings& settings) const {
  const auto where = fmt::format("[levin generate] --resume: \"{}\" ", part());
  LEVIN_CHECK(fs::exists(part_settings()), where, "has no \"", part_settings(),
              "\" beside it, which says what run it is of; --overwrite begins from the start");
  const auto before = nlohmann::json::parse(read_file(part_settings(), uint64_t{16} << 20), nullptr, false);
  LEVIN_CHECK(before.is_object(), "[levin generate] \"", part_settings(), "\" is not a JSON object");
  for (const auto& [name, value] : settings) {
    const auto found = before.find(name);
    const auto was = found != before.end() && found->is_string() ? found->get<std::string>() : std::string();
    LEVIN_CHECK(was == value, where, "is of a run with another ", name, " (\"", shown(was), "\", now \"", shown(value),
                "\"); --overwrite begins from the start");
  }
}

/// Cuts off what is behind the last whole step of lines.
int64_t GenerateOutput::keep_lines(int64_t step) {
  const FileReader file(part());
  std::string block(kReadBytes, '\0');
  int64_t lines = 0;
  uint64_t kept = 0;
  for (uint64_t at = 0; at < file.size(); at += block.size()) {
    block.resize(std::min<uint64_t>(kReadBytes, file.size() - at));
    file.read(at, std::as_writable_bytes(std::span(block)));
    for (auto end = block.find('\n'); end != block.npos; end = block.find('\n', end + 1))
      if (++lines % step == 0) kept = at + end + 1;
  }
  if (::ftruncate(fd_, static_cast<off_t>(kept)) != 0) levin::detail::fail_file("cut", part(), errno);
  return lines / step * step;
}

int64_t GenerateOutput::open(const RunSettings& settings, int64_t step) {
  if (path_ == "-") return 0;
  const bool continues = is_file() && resume_ && fs::exists(part());
  if (continues) check_settings(settings);
  const auto path = is_file() ? part() : path_;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_APPEND | (is_file() ? O_CREAT : 0), 0666);
  if (fd_ < 0) levin::detail::fail_file("create", path, errno);
  if (!is_file()) return 0;
  has_lines_ = continues;
  LEVIN_CHECK(::flock(fd_, LOCK_EX | LOCK_NB) == 0, "[levin generate] \"", part(),
              "\" is being written by another run");
  if (continues) return keep_lines(step);
  if (::ftruncate(fd_, 0) != 0) levin::detail::fail_file("empty", part(), errno);
  nlohmann::ordered_json json;
  for (const auto& [name, value] : settings) json[name] = value;
  write_file(part_settings(), json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  return 0;
}

void GenerateOutput::write(const std::string& lines) {
  if (lines.empty()) return;
  if (path_ == "-") {
    LEVIN_CHECK(std::fwrite(lines.data(), 1, lines.size(), stdout) == lines.size() && std::fflush(stdout) == 0,
                "[levin generate] cannot write to the standard output");
    return;
  }
  has_lines_ = true;
  for (size_t done = 0; done < lines.size();) {
    const auto count = ::write(fd_, lines.data() + done, lines.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) levin::detail::fail_file("write", is_file() ? part() : path_, errno);
    done += static_cast<size_t>(count);
  }
}

void GenerateOutput::forbid_resume() {
  if (is_file()) fs::remove(part_settings());
}

void GenerateOutput::finish() {
  if (fd_ < 0) return;
  if (is_file() && ::fsync(fd_) != 0) levin::detail::fail_file("write", part(), errno);
  if (!is_file()) {
    if (::close(std::exchange(fd_, -1)) != 0) levin::detail::fail_file("write", path_, errno);
    return;
  }
  fs::rename(part(), path_);
  is_whole_ = true;
  sync_folder(fs::absolute(path_).parent_path());
  fs::remove(part_settings());
}

}  // namespace levin::cli
