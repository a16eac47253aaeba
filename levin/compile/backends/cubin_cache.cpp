#include "levin/compile/backends/cubin_cache.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include <unistd.h>

namespace levin::compile {
namespace fs = std::filesystem;
namespace {

uint64_t hash_of(const std::string& text, uint64_t seed) {
  uint64_t hash = seed;  // FNV-1a
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

/// What the text is must be in the file: two texts may have one hash.
std::string head_of(const std::string& text) {
  return std::to_string(text.size()) + " " + std::to_string(hash_of(text, 7809847782465536322ull)) + "\n";
}

}  // namespace

CubinCache::CubinCache(fs::path folder, int64_t most_bytes) : folder_(std::move(folder)), most_bytes_(most_bytes) {}

fs::path CubinCache::default_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return fs::path(cache) / "levin/kernels";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache/levin/kernels";
  return {};
}

std::string CubinCache::get(const std::string& text, const std::function<std::string()>& make) const {
  if (folder_.empty()) return make();
  std::ostringstream name;
  name << std::hex << hash_of(text, 14695981039346656037ull) << ".cubin";
  const auto file = folder_ / name.str();
  const auto head = head_of(text);
  if (std::ifstream in{file, std::ios::binary}) {
    const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (all.size() > head.size() && all.compare(0, head.size(), head) == 0) {
      std::error_code ignored;
      fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);  // used: it stays
      return all.substr(head.size());
    }
  }
  auto code = make();
  keep(file, head + code);
  return code;
}

void CubinCache::keep(const fs::path& file, const std::string& code) const {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  static std::atomic<int> count{0};
  const auto temporary =
      folder_ / (file.filename().string() + "." + std::to_string(::getpid()) + "." + std::to_string(count++));
  {
    std::ofstream out{temporary, std::ios::binary};
    out.write(code.data(), static_cast<std::streamsize>(code.size()));
    out.close();
    if (!out) return void(fs::remove(temporary, failed));
  }
  fs::rename(temporary, file, failed);
  if (failed) return void(fs::remove(temporary, failed));
  struct Kept {
    fs::file_time_type time;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Kept> all;
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder_, failed)) {
    std::error_code gone;
    const auto size = static_cast<int64_t>(entry.file_size(gone));
    const auto time = entry.last_write_time(gone);
    if (gone) continue;
    all.push_back({time, size, entry.path()});
    bytes += size;
  }
  if (bytes <= most_bytes_) return;
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.time < b.time; });
  for (const auto& kept : all) {
    if (bytes <= most_bytes_) break;
    if (kept.path == file) continue;
    fs::remove(kept.path, failed);
    bytes -= kept.bytes;
  }
}

}  // namespace levin::compile
