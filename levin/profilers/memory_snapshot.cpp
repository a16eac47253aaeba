#include "levin/profilers/memory_snapshot.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace levin::detail {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::List<c10::IValue>;

Dict new_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}
List new_list() {
  return List(c10::AnyType::get());
}

int64_t number(uint64_t value) {
  return static_cast<int64_t>(value);
}

/// Lists of frames, made once for all that have the same.
class Stacks {
 public:
  explicit Stacks(const std::vector<std::vector<MemoryFrame>>& stacks) {
    for (const auto& stack : stacks) {
      auto frames = new_list();
      for (const auto& frame : stack) {
        auto one = new_dict();
        one.insert("name", frame.name);
        one.insert("filename", frame.place);
        one.insert("line", frame.line);
        frames.push_back(one);
      }
      lists_.push_back(frames);
    }
  }
  const List& at(size_t stack) const { return stack < lists_.size() ? lists_[stack] : none_; }
  const List& none() const { return none_; }

 private:
  std::vector<List> lists_;
  List none_ = new_list();
};

Dict segment_of(const MemorySegment& segment, const Stacks& stacks,
                const std::unordered_map<uint64_t, size_t>& stack_of) {
  auto out = new_dict();
  out.insert("device", int64_t{segment.device});
  out.insert("address", number(segment.address));
  out.insert("total_size", segment.bytes);
  out.insert("allocated_size", segment.allocated);
  out.insert("active_size", segment.active);
  out.insert("requested_size", segment.requested);
  out.insert("stream", number(segment.stream));
  out.insert("segment_type", segment.is_large ? "large" : "small");
  auto pool = new_list();
  pool.push_back(int64_t{0});
  pool.push_back(int64_t{0});
  out.insert("segment_pool_id", pool);
  out.insert("is_expandable", segment.is_expandable);
  out.insert("frames", stacks.none());
  auto blocks = new_list();
  for (const auto& block : segment.blocks) {
    auto one = new_dict();
    one.insert("address", number(block.address));
    one.insert("size", block.bytes);
    one.insert("requested_size", block.requested);
    one.insert("state", block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive");
    const auto found = stack_of.find(block.address);
    one.insert("frames", block.allocated && found != stack_of.end() ? stacks.at(found->second) : stacks.none());
    blocks.push_back(one);
  }
  out.insert("blocks", blocks);
  return out;
}

void add_entry(List& trace, const MemoryEntry& entry, const Stacks& stacks) {
  const auto add = [&](const char* action) {
    auto one = new_dict();
    one.insert("action", action);
    one.insert(entry.action == MemoryEntry::Action::kOutOfMemory ? "device_free" : "addr", number(entry.address));
    one.insert("size", entry.bytes);
    one.insert("stream", int64_t{0});
    one.insert("time_us", entry.time);
    one.insert("frames", stacks.at(entry.stack));
    trace.push_back(one);
  };
  switch (entry.action) {
    case MemoryEntry::Action::kAlloc:
      return add("alloc");
    case MemoryEntry::Action::kFree:
      add("free_requested");
      return add("free_completed");
    case MemoryEntry::Action::kOutOfMemory:
      return add("oom");
  }
}

Dict settings() {
  auto out = new_dict();
  out.insert("PYTORCH_CUDA_ALLOC_CONF", "");
  out.insert("max_split_size", int64_t{-1});
  out.insert("garbage_collection_threshold", 0.0);
  out.insert("expandable_segments", false);
  out.insert("pinned_num_register_threads", int64_t{1});
  out.insert("release_lock_on_cudamalloc", false);
  out.insert("pinned_use_cuda_host_register", false);
  out.insert("roundup_power2_divisions", new_dict());
  return out;
}

}  // namespace

std::string pickled(const MemorySnapshot& snapshot) {
  const Stacks stacks(snapshot.stacks);
  const std::unordered_map<uint64_t, size_t> stack_of(snapshot.stack_of.begin(), snapshot.stack_of.end());
  auto segments = new_list();
  c10::DeviceIndex devices = 1;
  for (const auto& segment : snapshot.segments) {
    segments.push_back(segment_of(segment, stacks, stack_of));
    devices = std::max<c10::DeviceIndex>(devices, static_cast<c10::DeviceIndex>(segment.device + 1));
  }
  for (const auto& entry : snapshot.entries)
    devices = std::max<c10::DeviceIndex>(devices, static_cast<c10::DeviceIndex>(entry.device + 1));
  std::vector<List> traces;
  for (int i = 0; i < devices; ++i) traces.push_back(new_list());
  for (const auto& entry : snapshot.entries) add_entry(traces[static_cast<size_t>(entry.device)], entry, stacks);
  auto all_traces = new_list();
  for (const auto& trace : traces) all_traces.push_back(trace);
  auto out = new_dict();
  out.insert("segments", segments);
  out.insert("device_traces", all_traces);
  out.insert("allocator_settings", settings());
  out.insert("external_annotations", new_list());
  const auto bytes = torch::jit::pickle(out);
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace levin::detail
