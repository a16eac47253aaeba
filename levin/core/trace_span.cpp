#include "levin/core/trace_span.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace levin {
namespace {

constexpr auto kSpanScope = at::RecordScope::USER_SCOPE;

/// What torch's profiler keeps per thread: the state that events and allocations go to, and the callbacks of operators.
struct ThreadRecording {
  std::shared_ptr<c10::ThreadLocalDebugInfo> info;
  at::RecordFunctionTLS callbacks;

  static ThreadRecording of_this_thread() {
    return {c10::ThreadLocalDebugInfo::current(), at::get_record_function_tls_()};
  }
  void install() const {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(info);
    at::set_record_function_tls_(callbacks);
  }
};

struct Recording {
  std::atomic<bool> is_on = false;
  /// Ends of recordings so far.
  std::atomic<uint64_t> ended = 0;
  std::mutex mutex;
  std::condition_variable left;
  std::shared_ptr<const ThreadRecording> published;
  int64_t inside = 0;
};

Recording& recording() {
  static auto* one = new Recording;  // threads may outlive main
  return *one;
}

}  // namespace

struct TraceSpan::Record {
  explicit Record(at::StepCallbacks&& callbacks) : function(std::move(callbacks)) {}
  at::RecordFunction function;
  uint64_t ended_before = recording().ended.load();
};

bool TraceSpan::is_recorded() {
  // Profilers record operators, too, and callbacks of operators are at hand. Those of another scope are put together
  // again after each backward, which takes 1 us.
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value() &&
         at::getStepCallbacksUnlessEmpty(kSpanScope).has_value();
}

void TraceSpan::begin(std::string name, TraceKind kind) {
  auto callbacks =
      at::getStepCallbacksUnlessEmpty(kind == TraceKind::kOperator ? at::RecordScope::FUNCTION : kSpanScope);
  if (!callbacks) return;
  // Kineto writes names into its JSON as they are.
  for (auto& c : name)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = c == '"' ? '\'' : c == '\\' ? '/' : ' ';
  record_ = new Record(std::move(*callbacks));
  record_->function.before(std::move(name));
}

void TraceSpan::end() noexcept {
  // The end of a span writes into its recording: one that is over has been freed, and the record is given up with it.
  if (record_->ended_before != recording().ended.load()) return;
  delete record_;
}

struct TracedWork::Saved {
  ThreadRecording before;
};

TracedWork::TracedWork() {
  auto& shared = recording();
  if (!shared.is_on.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) return;  // recorded already
  std::shared_ptr<const ThreadRecording> published;
  {
    const std::lock_guard lock(shared.mutex);
    published = shared.published;
    if (!published) return;
    ++shared.inside;
  }
  saved_ = std::make_unique<Saved>(Saved{ThreadRecording::of_this_thread()});
  published->install();
}

TracedWork::~TracedWork() {
  if (!saved_) return;
  saved_->before.install();
  auto& shared = recording();
  {
    const std::lock_guard lock(shared.mutex);
    --shared.inside;
  }
  shared.left.notify_all();
}

namespace detail {

void publish_recording() {
  auto& shared = recording();
  const std::lock_guard lock(shared.mutex);
  shared.published = std::make_shared<const ThreadRecording>(ThreadRecording::of_this_thread());
  shared.is_on = true;
}

void withdraw_recording() {
  auto& shared = recording();
  std::unique_lock lock(shared.mutex);
  shared.is_on = false;
  shared.published.reset();
  shared.left.wait(lock, [&] { return shared.inside == 0; });
  ++shared.ended;
}

}  // namespace detail

}  // namespace levin
