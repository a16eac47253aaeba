#include "levin/strategies/gemini/memory_monitor.h"

#include <algorithm>

#include "levin/devices/accelerator.h"
#include "levin/devices/memory_counter.h"

namespace levin::detail {
namespace {

class CountedMemory final : public MemorySource {
 public:
  int64_t allocated() const override { return counter_.allocated(); }
  int64_t peak() const override { return counter_.peak(); }
  void reset_peak() override { counter_.reset_peak(); }

 private:
  MemoryCounter counter_;
};

// The allocator counts when memory is asked for and given back, which is done in the order of the program: nobody has
// to wait for the device.
class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(c10::Device device) : device_(device), accelerator_(accelerator_of(device)) {}
  int64_t allocated() const override { return accelerator_.memory(device_).allocated; }
  int64_t peak() const override { return accelerator_.memory(device_).peak_allocated; }
  void reset_peak() override { accelerator_.reset_peak_memory(device_); }

 private:
  c10::Device device_;
  const Accelerator& accelerator_;
};

}  // namespace

std::unique_ptr<MemorySource> make_memory_source(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<CountedMemory>();
  return std::make_unique<DeviceMemory>(device);
}

void MemoryMonitor::begin() {
  periods_.clear();
  overall_peak_ = 0;
  measuring_ = true;
}

void MemoryMonitor::begin_period(int64_t model_bytes) {
  read_peak();
  const auto before = std::max<int64_t>(0, source_->allocated() - model_bytes);
  periods_.push_back({before, before});
  model_bytes_ = model_bytes;
  source_->reset_peak();
}

void MemoryMonitor::layout_changed(int64_t model_bytes) {
  if (!measuring_) return;
  overall_peak_ = std::max(overall_peak_, source_->peak());
  model_bytes_ = model_bytes;
  source_->reset_peak();
  read_peak();
}

void MemoryMonitor::finish() {
  read_peak();
  measuring_ = false;
}

void MemoryMonitor::read_peak() {
  if (!measuring_ || periods_.empty()) return;
  const auto peak = source_->peak();
  overall_peak_ = std::max(overall_peak_, peak);
  periods_.back().work = std::max(periods_.back().work, peak - model_bytes_);
}

}  // namespace levin::detail
