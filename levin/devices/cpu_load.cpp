#include "levin/devices/cpu_load.h"

#include <fstream>
#include <string>

namespace levin {
namespace {

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

}  // namespace

CpuLoad::Reading CpuLoad::read() {
  Reading reading;
  // user nice system idle iowait irq softirq steal, in ticks since the start; guests count as user already.
  std::ifstream stat("/proc/stat");
  std::string word;
  int64_t busy = 0, total = 0;
  if (stat >> word && word == "cpu")
    for (int field = 0; field < 8; ++field) {
      int64_t ticks = 0;
      if (!(stat >> ticks)) break;
      total += ticks;
      if (field != 3 && field != 4) busy += ticks;
    }
  if (total_ > 0) reading.cpu_percent = percent(static_cast<double>(busy - busy_), static_cast<double>(total - total_));
  busy_ = busy;
  total_ = total;

  double memory = 0, available = 0, swap = 0, swap_free = 0;
  std::ifstream info("/proc/meminfo");
  double kilobytes = 0;
  while (info >> word >> kilobytes) {
    if (word == "MemTotal:") memory = kilobytes;
    if (word == "MemAvailable:") available = kilobytes;
    if (word == "SwapTotal:") swap = kilobytes;
    if (word == "SwapFree:") swap_free = kilobytes;
    info.ignore(256, '\n');
  }
  reading.memory_percent = percent(memory - available, memory);
  reading.swap_percent = percent(swap - swap_free, swap);
  return reading;
}

}  // namespace levin
