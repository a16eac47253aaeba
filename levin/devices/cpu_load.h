#pragma once

#include <cstdint>

namespace levin {

/// How busy this machine's processors and memory are, in percent.
class CpuLoad {
 public:
  struct Reading {
    /// Of all processors, since the reading before; 0 the first time.
    double cpu_percent = 0;
    double memory_percent = 0;
    double swap_percent = 0;
  };
  /// Zeros where the system does not tell (it has no /proc).
  Reading read();

 private:
  int64_t busy_ = 0;
  int64_t total_ = 0;
};

}  // namespace levin
