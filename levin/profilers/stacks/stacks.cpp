#include "levin/profilers/stacks/stacks.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr uint32_t kNoEntry = 0xffffffff;
constexpr size_t kDeepest = 64;

std::string_view file_of(const char* path) {
  const std::string_view text = path == nullptr ? "" : path;
  return text.substr(text.rfind('/') + 1);
}

/// Libraries whose frames say nothing of the program.
bool is_foreign(std::string_view library) {
  for (const std::string_view name : {"libtorch", "libc10", "libgomp", "libomp", "libstdc++", "libc.so", "libpthread",
                                      "ld-linux", "libcuda", "libcudart", "libgcc_s", "libm.so"}) {
    if (library.starts_with(name)) return true;
  }
  return false;
}

/// Whether addresses are in such a library. Most were asked for before.
class ForeignAddresses {
 public:
  bool operator()(void* address) {
    const auto [at, is_new] = known_.try_emplace(address, false);
    if (is_new) {
      Dl_info info{};
      at->second = ::dladdr(address, &info) == 0 || is_foreign(file_of(info.dli_fname));
    }
    return at->second;
  }

 private:
  std::unordered_map<void*, bool> known_;
};

uint64_t hash_of(const std::vector<void*>& stack) {
  uint64_t hash = 1469598103934665603ULL;
  for (void* address : stack) hash = (hash ^ reinterpret_cast<uint64_t>(address)) * 1099511628211ULL;
  return hash;
}

/// "Net::forward" of "Net::forward(at::Tensor const&)": without parameters, which are outside of all other brackets.
std::string without_parameters(const std::string& name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '(' && name.compare(i, kAnonymous.size(), kAnonymous) == 0) {
      i += kAnonymous.size() - 1;
      continue;
    }
    if (c == '(' && depth == 0 && i > 0 && !name.substr(0, i).ends_with("operator")) return name.substr(0, i);
    if (c == '(' || c == '<' || c == '{') ++depth;
    if ((c == ')' || c == '>' || c == '}') && depth > 0) --depth;
  }
  return name;
}

/// "forward<float>" of "at::Tensor forward<float>": templates have the type of their result in their name.
std::string without_result(const std::string& name) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '(' || c == '<' || c == '{') ++depth;
    if ((c == ')' || c == '>' || c == '}') && depth > 0) --depth;
    if (c == ' ' && depth == 0 && !name.substr(0, i).ends_with("operator")) begin = i + 1;
  }
  return name.substr(begin);
}

/// Functions of torch's and the library's headers, which are compiled into the program.
bool is_of_headers(std::string_view function) {
  for (const std::string_view scope : {"at::", "c10::", "torch::", "std::", "__gnu_cxx::"}) {
    if (function.starts_with(scope)) return true;
  }
  return false;
}

std::string shortened(std::string name) {
  constexpr size_t kLongest = 160;
  name = without_result(without_parameters(name));
  if (name.size() > kLongest) name = name.substr(0, kLongest - 3) + "...";
  // What separates frames must not be in one.
  std::ranges::replace(name, ';', ',');
  return name;
}

StackFrame frame_of(const torch::unwind::Frame& found, void* address) {
  Dl_info info{};
  const bool is_known = ::dladdr(address, &info) != 0;
  StackFrame frame{.function = shortened(found.funcname), .file = found.filename};
  // Without lines torch gives the library and a place in it.
  const bool has_line =
      !(is_known && info.dli_fname != nullptr && file_of(info.dli_fname) == file_of(found.filename.c_str()));
  frame.line = has_line ? static_cast<int64_t>(found.lineno) : 0;
  if (!has_line) frame.file = file_of(found.filename.c_str());
  // Torch puts the folder of the compiler in front, also of whole paths.
  if (const auto root = frame.file.rfind("//"); root != std::string::npos) frame.file.erase(0, root + 1);
  return frame;
}

}  // namespace

std::string StackFrame::text() const {
  return line > 0 ? fmt::format("{}({}): {}", file, line, function) : fmt::format("{}: {}", file, function);
}

std::string folded_stack(const std::string& stack) {
  std::string out;
  for (size_t end = stack.size();;) {
    const auto at = end == 0 ? std::string::npos : stack.rfind(';', end - 1);
    const auto begin = at == std::string::npos ? 0 : at + 1;
    if (!out.empty()) out += ';';
    out += stack.substr(begin, end - begin);
    if (at == std::string::npos) break;
    end = at;
  }
  std::ranges::replace(out, ' ', '_');
  return out;
}

uint32_t StackTable::here() {
  thread_local ForeignAddresses is_foreign_address;
  auto all = torch::unwind::unwind();
  // The unwinder, then what asks for the stack, then torch again, which called that.
  size_t at = 0;
  while (at < all.size() && is_foreign_address(all[at])) ++at;
  while (at < all.size() && !is_foreign_address(all[at])) ++at;
  std::vector<void*> stack;
  for (; at < all.size() && stack.size() < kDeepest; ++at) {
    if (!is_foreign_address(all[at])) stack.push_back(all[at]);
  }
  return add(std::move(stack));
}

uint32_t StackTable::add(std::vector<void*> stack) {
  if (stack.empty()) return 0;
  auto& same = by_hash_[hash_of(stack)];
  for (const auto number : same) {
    if (stacks_[number] == stack) return number;
  }
  same.push_back(static_cast<uint32_t>(stacks_.size()));
  stacks_.push_back(std::move(stack));
  return same.back();
}

std::vector<std::vector<StackFrame>> symbolized(const StackTable& stacks) {
  std::vector<void*> addresses;
  for (uint32_t i = 0; i < stacks.size(); ++i) addresses.insert(addresses.end(), stacks[i].begin(), stacks[i].end());
  std::ranges::sort(addresses);
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  std::vector<torch::unwind::Frame> found;
  try {
    found = torch::unwind::symbolize(addresses, torch::unwind::Mode::fast);
  } catch (const std::exception&) {  // debug information that it cannot read: names of what is exported are left
    found = torch::unwind::symbolize(addresses, torch::unwind::Mode::dladdr);
  }
  std::unordered_map<void*, StackFrame> frames;
  for (size_t i = 0; i < addresses.size() && i < found.size(); ++i) {
    if (found[i].funcname != "??") frames.emplace(addresses[i], frame_of(found[i], addresses[i]));
  }
  std::vector<std::vector<StackFrame>> out(stacks.size());
  for (uint32_t i = 0; i < stacks.size(); ++i) {
    for (void* address : stacks[i]) {
      const auto at = frames.find(address);
      if (at != frames.end() && at->second.function != "_start" && !is_of_headers(at->second.function))
        out[i].push_back(at->second);
    }
  }
  return out;
}

const std::vector<std::string>& EventStacks::of(uint64_t correlation) const {
  const auto at = by_event_.find(correlation);
  return stacks_[at == by_event_.end() ? 0 : at->second];
}

uint32_t EventStacks::add(std::vector<std::string> frames) {
  stacks_.push_back(std::move(frames));
  return static_cast<uint32_t>(stacks_.size() - 1);
}

struct StackRecorder::State {
  /// An operator or span that began.
  struct Entry {
    uint64_t name = 0, forward_thread = 0;
    int64_t sequence = -1;
    uint32_t stack = 0;
    /// The operator around it, a place in the list; kNoEntry without.
    uint32_t around = kNoEntry;
    bool is_operator = false;
  };
  struct Thread {
    uint64_t number = 0;
    std::vector<Entry> entries;
    std::vector<uint32_t> open;
    StackTable stacks;
  };

  /// Callbacks are functions without a state. The number tells recorders apart for what threads remember.
  inline static std::atomic<State*> current = nullptr;
  inline static std::atomic<uint64_t> recorders = 0;

  const uint64_t number = ++recorders;
  at::CallbackHandle callback = 0;
  bool is_on = false;
  std::mutex mutex;
  std::vector<std::unique_ptr<Thread>> threads;

  Thread& here() {
    thread_local std::pair<uint64_t, Thread*> known{0, nullptr};
    if (known.first == number) return *known.second;
    const std::lock_guard lock(mutex);
    threads.push_back(std::make_unique<Thread>());
    threads.back()->number = at::RecordFunction::currentThreadId();
    known = {number, threads.back().get()};
    return *known.second;
  }

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    auto* const state = current.load(std::memory_order_relaxed);
    if (state == nullptr || function.isAsync()) return nullptr;
    auto& thread = state->here();
    Entry entry{.name = std::hash<std::string_view>{}(function.name()),
                .forward_thread = function.forwardThreadId(),
                .sequence = function.seqNr(),
                .is_operator = function.scope() != at::RecordScope::USER_SCOPE};
    for (size_t i = thread.open.size(); i-- > 0 && entry.around == kNoEntry;) {
      if (thread.entries[thread.open[i]].is_operator) entry.around = thread.open[i];
    }
    if (entry.is_operator && entry.around == kNoEntry) entry.stack = thread.stacks.here();
    thread.open.push_back(static_cast<uint32_t>(thread.entries.size()));
    thread.entries.push_back(entry);
    return nullptr;
  }
  static void leave(const at::RecordFunction& function, at::ObserverContext*) {
    auto* const state = current.load(std::memory_order_relaxed);
    if (state == nullptr || function.isAsync()) return;
    auto& thread = state->here();
    if (!thread.open.empty()) thread.open.pop_back();
  }

  void end() {
    if (!std::exchange(is_on, false)) return;
    at::removeCallback(callback);
    current = nullptr;
  }
};

namespace {

using torch::autograd::profiler::KinetoEvent;

/// Operators and spans of each thread, in the order in which they began.
std::map<uint64_t, std::vector<const KinetoEvent*>> begun_events(const std::vector<KinetoEvent>& events) {
  std::map<uint64_t, std::vector<const KinetoEvent*>> threads;
  for (const auto& event : events) {
    if (event.deviceType() != c10::DeviceType::CPU || event.linkedCorrelationId() != 0 || event.isAsync()) continue;
    if (event.correlationId() == 0 || event.name() == "[memory]") continue;
    threads[event.startThreadId()].push_back(&event);
  }
  for (auto& [thread, list] : threads)
    std::ranges::stable_sort(
        list, {}, [](const KinetoEvent* event) { return std::pair(event->startNs(), event->correlationId()); });
  return threads;
}

}  // namespace

StackRecorder::StackRecorder() : state_(std::make_unique<State>()) {
  State* none = nullptr;
  LEVIN_CHECK(State::current.compare_exchange_strong(none, state_.get()),
              "[profiler] stacks are recorded already; a process has one recording at a time");
  state_->callback = at::addGlobalCallback(
      at::RecordFunctionCallback(&State::enter, &State::leave)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  state_->is_on = true;
}

StackRecorder::~StackRecorder() {
  state_->end();
}

EventStacks StackRecorder::finish(const torch::autograd::profiler::ProfilerResult& result) {
  state_->end();
  EventStacks out;
  const auto events = begun_events(result.events());
  struct Placed {
    const State::Thread* thread;
    std::vector<uint32_t> stack_of;  // by entry: a stack of `out`
  };
  std::vector<Placed> all;
  // Of each node of autograd the stack of its forward. The last operator with its number made it.
  std::map<std::pair<uint64_t, int64_t>, uint32_t> forward;
  for (const auto& thread : state_->threads) {
    std::vector<uint32_t> own;
    for (const auto& frames : symbolized(thread->stacks)) {
      std::vector<std::string> texts;
      for (const auto& frame : frames) texts.push_back(frame.text());
      own.push_back(texts.empty() ? 0 : out.add(std::move(texts)));
    }
    auto& stack_of = all.emplace_back(Placed{thread.get(), {}}).stack_of;
    for (const auto& entry : thread->entries) {
      stack_of.push_back(entry.around == kNoEntry ? own[entry.stack] : stack_of[entry.around]);
      if (entry.sequence >= 0 && entry.forward_thread == 0) forward[{thread->number, entry.sequence}] = stack_of.back();
    }
  }
  std::unordered_map<uint32_t, uint32_t> backward_of;
  for (auto& [thread, stack_of] : all) {
    for (size_t i = 0; i < stack_of.size(); ++i) {
      const auto& entry = thread->entries[i];
      if (entry.around != kNoEntry) stack_of[i] = stack_of[entry.around];
      if (entry.forward_thread == 0 || entry.sequence < 0) continue;
      const auto made = forward.find({entry.forward_thread, entry.sequence});
      if (made == forward.end() || made->second == 0) continue;
      const auto [at, is_new] = backward_of.try_emplace(made->second, 0);
      if (is_new) {
        auto frames = out.frames(made->second);
        frames.emplace_back("backward");
        at->second = out.add(std::move(frames));
      }
      stack_of[i] = at->second;
    }
    const auto found = events.find(thread->number);
    if (found == events.end()) continue;
    // Both lists are in the order of calls. The recorder was there first and leaves last.
    size_t next = 0;
    for (const auto* event : found->second) {
      const auto name = std::hash<std::string_view>{}(event->name());
      size_t at = next;
      while (at < thread->entries.size() && thread->entries[at].name != name) ++at;
      if (at == thread->entries.size()) continue;
      if (stack_of[at] != 0) out.set(event->correlationId(), stack_of[at]);
      next = at + 1;
    }
  }
  return out;
}

}  // namespace levin::detail
