#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace levin {

/// What a span is for tools: a range of the program's own, or an operator. Old ones count time in operators only.
enum class TraceKind { kAnnotation, kOperator };

/// A named range in the trace of a profiler, until the end of the scope. It costs a few nanoseconds and allocates
/// nothing while no profiler records this thread.
///
///     levin::TraceSpan span("tokenize");
///     levin::TraceSpan span([&] { return "shard " + std::to_string(i); });  // the text is made only when recorded
class [[nodiscard]] TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, TraceKind kind = TraceKind::kAnnotation) {
    if (is_recorded()) begin(std::string(name), kind);
  }
  template <std::invocable F>
  explicit TraceSpan(F&& name) {
    if (is_recorded()) begin(std::string(std::forward<F>(name)()), TraceKind::kAnnotation);
  }
  ~TraceSpan() {
    if (record_) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  /// Whether a profiler records spans of this thread now.
  static bool is_recorded();

 private:
  struct Record;

  void begin(std::string name, TraceKind kind);
  void end() noexcept;

  Record* record_ = nullptr;
};

/// Work of a thread that serves the one that trains: while it lives, the profiler that records that one records this
/// thread too. Nothing in it may wait for the thread that trains. Without a profiler it costs one load.
class [[nodiscard]] TracedWork {
 public:
  TracedWork();
  ~TracedWork();
  TracedWork(const TracedWork&) = delete;
  TracedWork& operator=(const TracedWork&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

namespace detail {

/// For profilers, on the thread that they record: a recording has begun, and TracedWork of other threads joins it.
void publish_recording();
/// The recording is about to end. Waits until no thread is in a TracedWork of it; spans that are still open are given
/// up.
void withdraw_recording();

}  // namespace detail

}  // namespace levin
