#pragma once

#include <cstdint>
#include <memory>

namespace levin {

/// Counts the bytes of the CPU tensors of this process, exactly, whatever thread makes them: the caller's, autograd's,
/// those of collectives. Resident memory tells neither what was given back nor what the peak was made of.
///
///     MemoryCounter counter;
///     step();
///     EXPECT_LE(counter.peak(), budget);
///
/// Counted is what is allocated while the counter lives: make it before the tensors that matter. (Storage that was
/// there before stays uncounted, also when it is resized later.) Tensors may outlive the counter; counters may nest,
/// and each counts from its own beginning. The first one puts itself before torch's CPU allocator and the last one
/// takes itself away, at a time when no other thread allocates.
class MemoryCounter {
 public:
  MemoryCounter();
  ~MemoryCounter();
  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

  /// Bytes that were allocated since the counter was made and not freed yet.
  int64_t allocated() const;
  /// The highest value of allocated() since the beginning, or since the last reset_peak().
  int64_t peak() const;
  void reset_peak();
  /// Bytes and number of all allocations since the beginning, freed or not.
  int64_t total() const;
  int64_t allocations() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace levin
