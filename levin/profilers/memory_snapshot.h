#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/devices/memory_listener.h"

namespace levin::detail {

/// A line of a stack as PyTorch's memory viewer shows it.
struct MemoryFrame {
  std::string name, place;
  int64_t line = 0;
};

struct MemoryEntry {
  enum class Action : uint8_t { kAlloc, kFree, kOutOfMemory };
  Action action = Action::kAlloc;
  c10::DeviceIndex device = 0;
  uint64_t address = 0;
  int64_t bytes = 0;
  /// Microseconds since 1970.
  int64_t time = 0;
  /// An index of `stacks`.
  size_t stack = 0;
};

/// What a snapshot has to tell.
struct MemorySnapshot {
  std::vector<MemorySegment> segments = {};
  /// Of each block of `segments` that is allocated, by its address: an index of `stacks`.
  std::vector<std::pair<uint64_t, size_t>> stack_of = {};
  std::vector<MemoryEntry> entries = {};
  /// The innermost frame first.
  std::vector<std::vector<MemoryFrame>> stacks = {};
};

/// In the format of torch.cuda.memory._snapshot(), pickled.
std::string pickled(const MemorySnapshot& snapshot);

}  // namespace levin::detail
