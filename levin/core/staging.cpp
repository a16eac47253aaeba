#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/host.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

/// Names of 255 bytes are the limit of common file systems, and the marks need room.
constexpr size_t kLongestStem = 120;
constexpr std::string_view kOldMark = ".old", kGoneMark = ".gone";

/// The host as one word of a file's name.
std::string host_mark() {
  auto name = host_name();
  for (auto& c : name)
    if (c == '-' || c == '/') c = '_';
  return name.substr(0, 40);
}

bool is_dead(std::string_view process) {
  int id = 0;
  const auto [end, error] = std::from_chars(process.data(), process.data() + process.size(), id);
  if (error != std::errc() || id <= 0 || (end != process.data() + process.size() && *end != '-')) return false;
  return ::kill(id, 0) != 0 && errno == ESRCH;
}

std::string mark_of(const fs::path& path) {
  auto stem = path.filename().string();
  if (stem.size() > kLongestStem) stem = stem.substr(0, kLongestStem) + checksum_text(crc32c(stem));
  return fmt::format(".{}.tmp-{}-", stem, host_mark());
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Whether a name is `.<stem>.tmp-<host>-<process>-<n>` of a process of this host that is no more. What was being
/// replaced has a mark behind it and is not meant: it may be all there is.
bool is_abandoned(std::string_view name, std::string_view host) {
  const auto at = name.rfind(host);
  if (!name.starts_with('.') || at == name.npos || at == 0) return false;
  const auto numbers = name.substr(at + host.size());
  const auto dash = numbers.find('-');
  return dash != numbers.npos && dash > 0 && dash + 1 < numbers.size() &&
         numbers.find_first_not_of("0123456789-") == numbers.npos && numbers.find('-', dash + 1) == numbers.npos &&
         is_dead(numbers);
}

/// What processes of this host that are no more were writing into a folder, under whatever name: a run that has
/// continued does not write the same names again.
void remove_abandoned(const fs::path& folder) {
  std::error_code error, ignored;
  std::vector<fs::path> found;
  const auto host = fmt::format(".tmp-{}-", host_mark());
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (is_abandoned(it->path().filename().string(), host)) found.push_back(it->path());
  for (const auto& path : found) fs::remove_all(path, ignored);
}

/// The folders at `path` that processes of this host that are no more were replacing.
std::vector<fs::path> replaced_folders(const fs::path& path) {
  const auto mark = mark_of(path);
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent_of(path), error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    if (name.starts_with(mark) && name.ends_with(kOldMark) && is_dead(std::string_view(name).substr(mark.size())))
      found.push_back(it->path());
  }
  return found;
}

}  // namespace

fs::path detail::temporary_beside(const fs::path& path) {
  static std::atomic<int> counter = 0;
  remove_abandoned(parent_of(path));
  const auto name = fmt::format("{}{}-{}", mark_of(path), ::getpid(), counter++);
  return path.has_parent_path() ? path.parent_path() / name : fs::path(name);
}

void detail::restore_replaced(const fs::path& path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error))) return;
  const auto old = replaced_folders(path);
  if (!old.empty()) fs::rename(old.front(), path, error);
}

void remove_whole(const fs::path& path) {
  auto gone = detail::temporary_beside(path);
  gone += kGoneMark;
  std::error_code error;
  fs::rename(path, gone, error);
  if (error) fs::remove_all(path);  // says why not
  for (fs::directory_iterator it(parent_of(path), error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.') && name.find(".tmp-") != std::string::npos && name.ends_with(kGoneMark))
      fs::remove_all(it->path(), ignored);
  }
}

StagedFiles::~StagedFiles() {
  for (const auto& file : files_) ::unlink(file.temporary.c_str());
}

fs::path StagedFiles::add(const fs::path& destination) {
  files_.push_back({detail::temporary_beside(destination), destination});
  return files_.back().temporary;
}

void StagedFiles::commit() {
  std::set<fs::path> folders;
  for (auto& [temporary, destination] : files_) {
    if (::rename(temporary.c_str(), destination.c_str()) != 0) detail::fail_file("replace", destination, errno);
    temporary.clear();
    folders.insert(destination.parent_path());
  }
  for (const auto& folder : folders) sync_folder(folder);
  files_.clear();
}

void AtomicFile::commit() {
  writer_.close();
  staged_.commit();
}

AtomicFolder::AtomicFolder(const fs::path& path) {
  std::error_code error;
  // A link to a folder stays a link: what it points at is replaced. "run/last/" is "run/last".
  path_ = fs::is_symlink(fs::symlink_status(path, error)) ? fs::weakly_canonical(path) : path.lexically_normal();
  if (!path_.has_filename()) path_ = path_.parent_path();
  LEVIN_CHECK(path_.has_filename() && path_.filename() != "." && path_.filename() != "..", "[file] \"", path.string(),
              "\" is not a folder name that can be replaced");
  make_folder(path_.parent_path());
  detail::restore_replaced(path_);
  temporary_ = detail::temporary_beside(path_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) detail::fail_file("create folder", temporary_, errno);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!done_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  sync_folder(temporary_);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path_, error))) {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) detail::fail_file("create", path_, errno);
    return finish();
  }
#ifdef RENAME_EXCHANGE
  const bool exchanged = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
#else
  const bool exchanged = false;
#endif
  auto old = temporary_;
  if (!exchanged) {
    // Without an exchange there is a short moment with no folder of that name; the old one then stands beside, whole.
    old += ".old";
    if (::rename(path_.c_str(), old.c_str()) != 0) detail::fail_file("replace", path_, errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int reason = errno;
      ::rename(old.c_str(), path_.c_str());
      detail::fail_file("replace", path_, reason);
    }
  }
  finish();
  fs::remove_all(old, error);
}

void AtomicFolder::merge() {
  std::error_code error;
  if (!fs::exists(path_, error)) return commit();
  sync_folder(temporary_);
  for (const auto& file : fs::directory_iterator(temporary_)) {
    const auto destination = path_ / file.path().filename();
    if (::rename(file.path().c_str(), destination.c_str()) != 0) detail::fail_file("replace", destination, errno);
  }
  sync_folder(path_);
  fs::remove_all(temporary_, error);
  finish();
}

void AtomicFolder::finish() {
  done_ = true;
  sync_folder(path_.parent_path());
}

}  // namespace levin
