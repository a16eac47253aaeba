#include "levin/profilers/memory_history.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <ATen/record_function.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/devices/memory_listener.h"
#include "levin/profilers/memory_snapshot.h"
#include "levin/profilers/stacks/stacks.h"
#include "levin/profilers/unit_spans.h"

namespace levin {
namespace {

using detail::MemoryEntry;
using detail::UnitSpanName;

/// What runs on a thread, the outermost first. Names live as long as they run.
struct Running {
  struct Frame {
    const char* name;
    /// Of an operator of backward: the unit of forward.
    const UnitSpanName* unit;
  };
  std::vector<Frame> frames;

  static Running& here() {
    thread_local Running running;
    return running;
  }
};

constexpr std::string_view kEvaluate = "autograd::engine::evaluate_function";

int64_t now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct MemoryHistory::State : MemoryListener {
  struct Block {
    int64_t bytes;
    size_t stack;
  };
  struct Stack {
    std::vector<detail::MemoryFrame> frames;
    std::string holder;
    /// Of `code`.
    uint32_t called_from = 0;
  };

  c10::Device device;
  MemoryHistoryOptions options;
  std::function<void(const std::string&)> on_out_of_memory;
  at::CallbackHandle callback = 0;
  std::vector<detail::UnitSpans> units;
  detail::AllUnitCalls calls;

  mutable std::mutex mutex;
  std::unordered_map<uint64_t, Block> live;
  std::deque<MemoryEntry> entries;
  std::vector<Stack> stacks;
  std::unordered_map<std::string, size_t> stack_index;
  detail::StackTable code;
  std::unordered_map<std::string, MemoryHolder> holding, at_peak;
  int64_t allocated_bytes = 0, peak_bytes = 0, noted_peak = 0;
  bool telling = false;

  /// The callbacks of operators are functions without a state.
  inline static std::atomic<State*> current = nullptr;

  State(c10::Device of, MemoryHistoryOptions asked) : device(of), options(asked) {}

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    if (function.isAsync()) return nullptr;
    const UnitSpanName* unit = nullptr;
    auto* state = current.load();
    if (state && function.forwardThreadId() != 0 && function.seqNr() >= 0)
      unit = detail::find_unit(state->calls, function.forwardThreadId(), function.seqNr());
    auto& frames = Running::here().frames;
    // The engine sums what a node returned, under a frame of its own around the node.
    if (unit && !frames.empty() && std::string_view(frames.back().name).starts_with(kEvaluate))
      frames.back().unit = unit;
    frames.push_back({function.name(), unit});
    return nullptr;
  }
  static void leave(const at::RecordFunction& function, at::ObserverContext*) {
    auto& frames = Running::here().frames;
    if (!function.isAsync() && !frames.empty()) frames.pop_back();
  }

  /// Of what runs on this thread. Under the lock.
  size_t stack_here() {
    const auto& frames = Running::here().frames;
    std::string key;
    for (const auto& frame : frames) {
      key += frame.name;
      if (frame.unit) key += " @" + frame.unit->path;
      key += '\n';
    }
    const auto called_from = options.with_stack ? code.here() : 0;
    if (called_from != 0) key += "from " + std::to_string(called_from);
    const auto [found, is_new] = stack_index.try_emplace(key, stacks.size());
    if (is_new) {
      stacks.push_back(described(frames));
      stacks.back().called_from = called_from;
    }
    return found->second;
  }

  static Stack described(const std::vector<Running::Frame>& frames) {
    Stack stack;
    std::string unit, backward;
    for (const auto& frame : frames) {
      UnitSpanName name;
      const bool is_unit = UnitSpanName::parse(frame.name, name);
      if (is_unit) unit = name.path;
      if (frame.unit) backward = frame.unit->path;
      const auto& place = frame.unit ? frame.unit->path : unit;
      stack.frames.push_back({is_unit ? "nn.Module: " + name.module : std::string(frame.name), place});
    }
    std::reverse(stack.frames.begin(), stack.frames.end());
    if (!backward.empty())
      stack.holder = backward + " (backward)";
    else if (!unit.empty())
      stack.holder = unit;
    else
      stack.holder = frames.empty() ? "(outside of operators)" : outermost(frames);
    return stack;
  }

  /// The outermost that tells something: a step of the profiler or of the loop does not.
  static std::string outermost(const std::vector<Running::Frame>& frames) {
    for (const auto& frame : frames)
      if (!std::string_view(frame.name).starts_with("ProfilerStep#")) return frame.name;
    return frames.back().name;
  }

  void remember(MemoryEntry entry) {
    entry.time = now_us();
    entries.push_back(entry);
    if (static_cast<int64_t>(entries.size()) > options.max_entries) entries.pop_front();
  }

  void hold(uint64_t address, int64_t bytes, size_t stack) {
    live[address] = {bytes, stack};
    auto& holder = holding[stacks[stack].holder];
    holder.bytes += bytes;
    ++holder.blocks;
    allocated_bytes += bytes;
    peak_bytes = std::max(peak_bytes, allocated_bytes);
    // A copy for every new peak would cost more than the step.
    if (allocated_bytes > noted_peak + noted_peak / 100) noted_peak = allocated_bytes, at_peak = holding;
  }

  void allocated(c10::Device where, uint64_t address, int64_t bytes) override {
    const std::lock_guard lock(mutex);
    const auto stack = stack_here();
    remember({MemoryEntry::Action::kAlloc, index_of(where), address, bytes, 0, stack});
    hold(address, bytes, stack);
  }

  void freed(c10::Device where, uint64_t address) override {
    const std::lock_guard lock(mutex);
    const auto found = live.find(address);
    if (found == live.end()) return;  // older than the history
    const auto [bytes, stack] = found->second;
    live.erase(found);
    remember({MemoryEntry::Action::kFree, index_of(where), address, bytes, 0, stack_here()});
    auto& holder = holding[stacks[stack].holder];
    holder.bytes -= bytes;
    --holder.blocks;
    allocated_bytes -= bytes;
  }

  void out_of_memory(c10::Device where, int64_t bytes, int64_t free) override {
    {
      const std::lock_guard lock(mutex);
      if (std::exchange(telling, true)) return;
      remember({MemoryEntry::Action::kOutOfMemory, index_of(where), static_cast<uint64_t>(std::max<int64_t>(free, 0)),
                bytes, 0, stack_here()});
    }
    try {
      if (on_out_of_memory) on_out_of_memory(line_of(where, bytes, free));
    } catch (const std::exception&) {  // the error that follows matters more
    }
    const std::lock_guard lock(mutex);
    telling = false;
  }

  std::string line_of(c10::Device where, int64_t bytes, int64_t free) const {
    std::string here;
    {
      const std::lock_guard lock(mutex);
      here = stacks[entries.back().stack].holder;
    }
    auto line =
        detail::concat(where.str(), " has no room for ", format_bytes(static_cast<double>(bytes)), " in ", here);
    if (free >= 0) line += detail::concat(" (", format_bytes(static_cast<double>(free)), " free)");
    return line;
  }

  static c10::DeviceIndex index_of(c10::Device where) { return where.has_index() ? where.index() : 0; }

  static std::vector<MemoryHolder> sorted(const std::unordered_map<std::string, MemoryHolder>& map) {
    std::vector<MemoryHolder> all;
    for (const auto& [name, holder] : map)
      if (holder.bytes > 0) all.push_back({name, holder.bytes, holder.blocks});
    std::sort(all.begin(), all.end(), [](const MemoryHolder& a, const MemoryHolder& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
    });
    return all;
  }

  detail::MemorySnapshot snapshot() const {
    detail::MemorySnapshot out;
    if (device.is_cuda()) out.segments = detail::cuda_memory_segments();
    const std::lock_guard lock(mutex);
    out.entries.assign(entries.begin(), entries.end());
    const auto functions = detail::symbolized(code);
    for (const auto& stack : stacks) {
      auto& frames = out.stacks.emplace_back(stack.frames);
      for (const auto& frame : functions[stack.called_from]) frames.push_back({frame.function, frame.file, frame.line});
    }
    for (const auto& [address, block] : live) {
      out.stack_of.emplace_back(address, block.stack);
      if (device.is_cuda()) continue;
      // The CPU has no segments: every block is one.
      MemorySegment segment{.address = address,
                            .bytes = block.bytes,
                            .requested = block.bytes,
                            .allocated = block.bytes,
                            .active = block.bytes,
                            .is_large = block.bytes > (1 << 20)};
      segment.blocks.push_back({address, block.bytes, block.bytes, true, true});
      out.segments.push_back(std::move(segment));
    }
    return out;
  }

  std::unique_ptr<ListenToMemory> listening;  // last: it ends before what it uses
};

MemoryHistory::MemoryHistory(c10::Device device, MemoryHistoryOptions options)
    : state_(std::make_unique<State>(device, options)) {
  LEVIN_CHECK(options.max_entries > 0, "[memory] max_entries ", options.max_entries, " is not allowed (1 or more)");
  State* none = nullptr;
  LEVIN_CHECK(State::current.compare_exchange_strong(none, state_.get()),
              "[memory] the history of memory is recorded already; a process has one at a time");
  try {
    state_->listening = std::make_unique<ListenToMemory>(device.type(), *state_);
  } catch (...) {
    State::current = nullptr;
    throw;
  }
  state_->callback = at::addGlobalCallback(
      at::RecordFunctionCallback(&State::enter, &State::leave)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

MemoryHistory::~MemoryHistory() {
  at::removeCallback(state_->callback);
  State::current = nullptr;
}

void MemoryHistory::watch(torch::nn::Module& model) {
  auto& state = *state_;
  state.units.emplace_back(model);
  if (const auto& calls = state.units.back().calls()) state.calls.push_back(calls);
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != state.device.type() || !tensor.has_storage()) return;
    const auto address = reinterpret_cast<uint64_t>(tensor.storage().data());
    const std::lock_guard lock(state.mutex);
    if (address == 0 || state.live.contains(address)) return;
    const auto dot = name.rfind('.');
    const auto unit = dot == std::string::npos ? std::string("(model)") : name.substr(0, dot);
    const auto [found, is_new] = state.stack_index.try_emplace("parameter " + name, state.stacks.size());
    if (is_new) state.stacks.push_back({{{"parameter " + name, unit}}, unit + " (parameters)"});
    state.hold(address, static_cast<int64_t>(tensor.storage().nbytes()), found->second);
  };
  for (const auto& parameter : model.named_parameters()) add(parameter.key(), parameter.value());
  for (const auto& buffer : model.named_buffers()) add(buffer.key(), buffer.value());
}

void MemoryHistory::end_step() {
  for (const auto& calls : state_->calls) calls->forget();
}

void MemoryHistory::set_on_out_of_memory(std::function<void(const std::string&)> handle) {
  state_->on_out_of_memory = std::move(handle);
}

int64_t MemoryHistory::allocated() const {
  const std::lock_guard lock(state_->mutex);
  return state_->allocated_bytes;
}
int64_t MemoryHistory::peak() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peak_bytes;
}
std::vector<MemoryHolder> MemoryHistory::holders() const {
  const std::lock_guard lock(state_->mutex);
  return State::sorted(state_->holding);
}
std::vector<MemoryHolder> MemoryHistory::holders_at_peak() const {
  const std::lock_guard lock(state_->mutex);
  return State::sorted(state_->at_peak);
}

void MemoryHistory::write_snapshot(const std::filesystem::path& path) const {
  make_folder(path.parent_path());
  write_file(path, detail::pickled(state_->snapshot()));
}

}  // namespace levin
