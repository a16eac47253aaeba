#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

/// The events of one trace, small enough that those of a file of a gigabyte fit into memory. Times are nanoseconds.
namespace levin::report {

using Ns = int64_t;
/// "There is none", of a number or a place in a list.
inline constexpr uint32_t kNone = 0xffffffff;

/// Each text once. Number 0 is the empty text.
class Names {
 public:
  Names() { add(""); }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  Names(Names&&) = default;
  Names& operator=(Names&&) = default;

  uint32_t add(std::string_view text);
  /// kNone when it is not there.
  uint32_t find(std::string_view text) const;
  const std::string& operator[](uint32_t number) const { return *texts_[number]; }
  size_t size() const { return texts_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
  std::vector<const std::string*> texts_;
};

enum class HostKind : uint8_t { kOperator, kStep, kDataLoader, kOptimizer, kCollective, kAnnotation, kModule };

/// A span on a thread of the host: an operator, or a range that a program named.
struct HostSpan {
  Ns start = 0, duration = 0;
  uint32_t name = 0, thread = 0;
  /// Ties runtime calls and device work to it.
  uint32_t external = kNone;
  /// As in the file: `Input Dims`, `Input type`, `Concrete Inputs`, `Call stack`.
  uint32_t shapes = 0, types = 0, values = 0, stack = 0;
  /// Forward and backward of an operator have the same; kNone without.
  uint32_t sequence = kNone;
  HostKind kind = HostKind::kOperator;
  /// The thread of the forward is given: this is a backward.
  bool is_backward = false;
  /// Named by the program (user_annotation), whatever its kind.
  bool is_annotation = false;

  Ns end() const { return start + duration; }
};

/// A call of the CUDA runtime or driver.
struct RuntimeCall {
  Ns start = 0, duration = 0;
  uint32_t name = 0, thread = 0, external = kNone, correlation = kNone;
  /// The operator that made it, a place in the host spans; kNone for the root of the thread.
  uint32_t owner = kNone;

  Ns end() const { return start + duration; }
};

enum class DeviceKind : uint8_t { kKernel, kMemcpy, kMemset };

/// What the launch of a kernel says of it.
struct KernelProperties {
  uint32_t grid = 0, block = 0;
  int64_t registers = -1, shared_memory = -1;
  /// Negative when the trace does not say.
  double blocks_per_sm = -1, occupancy = -1;

  bool operator==(const KernelProperties&) const = default;
};

/// What a kernel of NCCL says of its collective.
struct Message {
  uint32_t name = 0;
  /// Of the input; negative when the trace does not say.
  int64_t bytes = -1;

  bool operator==(const Message&) const = default;
};

/// Work on a device.
struct DeviceEvent {
  Ns start = 0, duration = 0;
  uint32_t name = 0, stream = 0, external = kNone, correlation = kNone;
  /// A place in the properties.
  uint32_t properties = kNone;
  /// The call that launched it, a place in the runtime calls.
  uint32_t launch = kNone;
  /// The collective that launched it, a place in the host spans; and what the kernel says of it, a place in the
  /// messages.
  uint32_t collective = kNone, message = kNone;
  int64_t bytes = -1;
  int16_t device = 0;
  DeviceKind kind = DeviceKind::kKernel;
  bool is_communication : 1 = false;
  /// Of `unit`.
  bool is_backward : 1 = false;
  /// The unit that launched it, where the trace says so itself (kernels of a replayed graph); 0: it does not.
  uint32_t unit = 0;

  Ns end() const { return start + duration; }
};

/// An allocation (bytes > 0) or a release.
struct MemoryEvent {
  Ns time = 0;
  uint64_t address = 0;
  int64_t bytes = 0;
  /// Negative when the trace does not say. `allocated` is then the sum of `bytes` of the device up to here.
  int64_t allocated = -1, reserved = -1;
  uint32_t thread = 0;
  /// -1 for the CPU.
  int16_t device = -1;
  bool has_address = false;
};

/// A thread of the host or a stream of a device, as the file names them.
struct Track {
  std::string process, thread, name;
};

/// A range on a device that a program named (gpu_user_annotation); it is shown and counted nowhere.
struct DeviceRange {
  Ns start = 0, duration = 0;
  uint32_t name = 0, stream = 0;
  int16_t device = 0;
};

struct DeviceInfo {
  int64_t id = 0, memory_bytes = 0;
  int64_t sm_count = 0;
  int major = -1, minor = -1;
  std::string name;
};

struct TraceEvents {
  Names names;
  std::vector<Track> tracks;
  std::vector<HostSpan> host;
  std::vector<RuntimeCall> calls;
  std::vector<DeviceEvent> device;
  std::vector<KernelProperties> properties;
  std::vector<Message> messages;
  std::vector<MemoryEvent> memory;
  std::vector<DeviceRange> device_ranges;
  std::vector<DeviceInfo> devices;
  /// "GPU", or what else the devices are ("MTIA").
  std::string device_kind = "GPU";
  /// The trace is one of ROCm.
  bool is_amd = false;
  /// Of `PyTorch Profiler (0)`, or of all events.
  Ns record_start = 0, record_end = 0;
  /// First and last moment of all events.
  Ns start = 0, end = 0;
  uint64_t event_count = 0;
  /// -1 when the file does not say.
  int64_t rank = -1, world_size = -1;
  std::string backend, framework;
  /// What Levin wrote of the run (`levin`): strategy, precision, batch size.
  std::vector<std::pair<std::string, std::string>> facts;
  /// What the memory estimate said (`levin_memory`): the peak, and its parts. -1 without.
  int64_t predicted_peak = -1;
  std::vector<std::pair<std::string, int64_t>> predicted_parts;
  /// What was left out, and why.
  std::vector<std::string> warnings;

  const std::string& name(uint32_t number) const { return names[number]; }
};

}  // namespace levin::report
