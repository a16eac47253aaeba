#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

namespace levin::detail {

/// Where figures of allocated bytes come from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual int64_t allocated() const = 0;
  /// The highest value of allocated() since the last reset_peak().
  virtual int64_t peak() const = 0;
  virtual void reset_peak() = 0;
};

/// The allocator of a device; for the CPU a counter that begins now.
std::unique_ptr<MemorySource> make_memory_source(c10::Device device);

/// Bytes of everything but parameters around one use of chunks.
struct MemoryPeriod {
  /// At its beginning, before the chunks came.
  int64_t before = 0;
  /// The most until the next use.
  int64_t work = 0;
};

/// Measures how much memory activations and everything else need besides the parameters, use after use, while a step
/// runs. A peak does not tell what it was made of, so it is read and reset whenever the parameters in memory
/// change: what it exceeds them by is the rest.
class MemoryMonitor {
 public:
  explicit MemoryMonitor(std::unique_ptr<MemorySource> source) : source_(std::move(source)) {}

  /// Forgets what was measured.
  void begin();
  /// A use begins with this many bytes of parameters in memory.
  void begin_period(int64_t model_bytes);
  /// Parameters are about to be gathered or released, and were: now they take this many bytes. What is in memory in
  /// between is not measured: the placement knows what chunks take while they are gathered.
  void layout_changing() { read_peak(); }
  void layout_changed(int64_t model_bytes);
  void finish();

  const std::vector<MemoryPeriod>& periods() const { return periods_; }
  std::vector<MemoryPeriod>& periods() { return periods_; }
  /// Highest of all that was in memory together, parameters included, while this measured.
  int64_t overall_peak() const { return overall_peak_; }
  /// Everything but parameters, now.
  int64_t non_model_now(int64_t model_bytes) const { return source_->allocated() - model_bytes; }

 private:
  void read_peak();

  std::unique_ptr<MemorySource> source_;
  std::vector<MemoryPeriod> periods_;
  int64_t model_bytes_ = 0;
  int64_t overall_peak_ = 0;
  bool measuring_ = false;
};

}  // namespace levin::detail
