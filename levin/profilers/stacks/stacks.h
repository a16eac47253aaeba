#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace levin::detail {

/// A frame of C++ code. Without debug information the file is the library or program, and the line is 0.
struct StackFrame {
  std::string function, file;
  int64_t line = 0;

  /// "train.cpp(42): forward", or "libmodel.so: forward".
  std::string text() const;
};

/// Stacks of addresses, each kept once. Number 0 is the empty one. It belongs to one thread, or its owner locks it.
class StackTable {
 public:
  StackTable() : stacks_(1) {}
  /// The stack of this thread, without those frames that are in torch and in what calls this.
  uint32_t here();
  uint32_t add(std::vector<void*> stack);
  const std::vector<void*>& operator[](uint32_t number) const { return stacks_[number]; }
  size_t size() const { return stacks_.size(); }

 private:
  std::vector<std::vector<void*>> stacks_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> by_hash_;
};

/// The frames of each stack, the innermost first: those of the program and of Levin, none of torch and of the system.
/// It reads debug information, and takes a moment: once, when all is recorded.
std::vector<std::vector<StackFrame>> symbolized(const StackTable& stacks);

/// A stack "inner;outer" as a line for flame graphs: "outer;inner", with '_' for spaces.
std::string folded_stack(const std::string& stack);

/// Call stacks of the events of a recording.
class EventStacks {
 public:
  /// The innermost frame first; empty where there is none.
  const std::vector<std::string>& of(uint64_t correlation) const;
  bool empty() const { return by_event_.empty(); }
  void set(uint64_t correlation, uint32_t stack) { by_event_[correlation] = stack; }
  uint32_t add(std::vector<std::string> frames);
  const std::vector<std::string>& frames(uint32_t stack) const { return stacks_[stack]; }

 private:
  std::vector<std::vector<std::string>> stacks_ = std::vector<std::vector<std::string>>(1);
  std::unordered_map<uint64_t, uint32_t> by_event_;
};

/// Notes where in the program each operator was called, while it lives. An operator inside another one has the stack of
/// that; one of backward that of its forward, with "backward" as its outermost frame. There is one in a process.
class StackRecorder {
 public:
  StackRecorder();
  ~StackRecorder();
  StackRecorder(const StackRecorder&) = delete;
  StackRecorder& operator=(const StackRecorder&) = delete;

  /// Ends. Of the events of a recording that was made meanwhile.
  EventStacks finish(const torch::autograd::profiler::ProfilerResult& result);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::detail
