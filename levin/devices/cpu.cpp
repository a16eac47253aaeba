#include <fstream>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <unistd.h>

#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"

namespace levin {
namespace {

// A line of /proc/self/status such as "VmHWM:   123456 kB", in bytes; 0 where there is no such file.
int64_t status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == field) {
      int64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
    status.ignore(4096, '\n');
  }
  return 0;
}

class Cpu final : public Accelerator {
 public:
  std::string name() const override { return "cpu"; }
  int device_count() const override { return 1; }
  std::string why_unavailable() const override { return ""; }
  void set_device(c10::Device) const override { keep_freed_memory(); }
  void synchronize(c10::Device) const override {}

  MemoryStats memory(c10::Device) const override {
    const int64_t now = status_bytes("VmRSS:");
    const int64_t peak = status_bytes("VmHWM:");
    return {.allocated = now, .peak_allocated = peak, .reserved = now, .peak_reserved = peak};
  }

  void reset_peak_memory(c10::Device) const override {
    // "5" resets the resident high-water mark (Linux >= 4.0); elsewhere the peak stays that of the whole process.
    std::ofstream("/proc/self/clear_refs") << "5";
  }

  void empty_cache(c10::Device) const override { give_back_freed_memory(); }

  DeviceInfo info(c10::Device) const override {
    return {.name = "CPU", .total_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE)};
  }

  at::Tensor rng_state(c10::Device) const override {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  void set_rng_state(c10::Device, const at::Tensor& state) const override {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
};

}  // namespace

const Accelerator& detail::cpu_accelerator() {
  static const Cpu cpu;
  return cpu;
}

}  // namespace levin
