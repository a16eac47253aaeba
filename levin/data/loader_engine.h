#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace levin::detail {

/// One batch while it is being made: samples in any order and by several threads, then the rest by one.
class BatchWork {
 public:
  virtual ~BatchWork() = default;
  /// Number of samples to make.
  virtual int64_t samples() const = 0;
  /// Makes one. Errors are kept until the batch is due.
  virtual void make(int64_t sample) noexcept = 0;
  /// Puts the batch together; throws when a sample could not be made.
  virtual void finish() = 0;
  /// For the line about a batch that does not come: "batch 12 of epoch 3".
  virtual std::string name() const = 0;
};

struct EngineOptions {
  /// At least 1.
  int workers = 1;
  /// Batches in the making or ready, at most.
  int64_t ahead = 2;
  bool persistent = true;
  /// Seconds; 0: none.
  double timeout = 0;
};

/// Threads that make batches ahead of the one in use, in order. The unit of work is a sample (or a few small ones), so
/// one slow image holds up nobody but its batch. An error in a thread is thrown by next().
///
/// In a child after fork() the threads are gone: a new pass starts new ones, and the pass that was under way is an
/// Error.
class LoaderEngine {
 public:
  /// The next batch to make; null at the end of the pass. Called by one thread at a time, in order.
  using Next = std::function<std::shared_ptr<BatchWork>()>;

  explicit LoaderEngine(const EngineOptions& options);
  ~LoaderEngine();
  LoaderEngine(const LoaderEngine&) = delete;
  LoaderEngine& operator=(const LoaderEngine&) = delete;

  /// Begins a pass; what is left of the one before is dropped.
  void start(Next next);
  /// The next batch, finished; null at the end of the pass. Throws what making it threw.
  std::shared_ptr<BatchWork> next();
  /// Ends the pass, and the threads unless they are to stay.
  void end();
  /// Seconds that next() has waited, in all.
  double waited();

  /// Whether the threads were those of the process that forked this one, and what they use may be locked for ever.
  bool is_from_parent() const;

 private:
  struct State;
  State& own();

  std::unique_ptr<State> state_;
};

/// Cores that this process may use: the machine's, its affinity mask and the limit of its control group.
int usable_cores();

}  // namespace levin::detail
