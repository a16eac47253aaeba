#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "levin/core/error.h"

/// Handles are int64_t and results int: the library's own header stays out of ours.
namespace levin::detail {

/// Held around every call of the library: it is one state for the whole process, and most builds of it are not safe for
/// threads. It also keeps the library from printing.
class Hdf5Lock {
 public:
  Hdf5Lock();
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  int (*print_)(int64_t, void*) = nullptr;
  void* argument_ = nullptr;
};

/// A handle of the library, closed when it goes; only under the lock.
class Hdf5Id {
 public:
  using Close = int (*)(int64_t);
  Hdf5Id() = default;
  Hdf5Id(int64_t id, Close close) : id_(id), close_(close) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Hdf5Id(const Hdf5Id&) = delete;
  ~Hdf5Id() {
    if (id_ >= 0) close_(id_);
  }

  operator int64_t() const { return id_; }
  bool good() const { return id_ >= 0; }

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

/// Why the last call failed, in the library's own words.
std::string hdf5_reason();

template <class T>
T check_hdf5(T result, const std::filesystem::path& path, const char* what) {
  if (result < 0) [[unlikely]]
    fail(concat("[records] cannot ", what, " \"", path.string(), "\": ", hdf5_reason()));
  return result;
}

}  // namespace levin::detail
