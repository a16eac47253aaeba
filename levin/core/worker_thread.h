#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace levin::detail {

/// The process in which it was made.
class HomeProcess {
 public:
  /// False in a child that fork() has made of that process since.
  bool is_here() const { return ::getpid() == id_; }

 private:
  pid_t id_ = ::getpid();
};

/// Owns what has threads, or connections on which other processes rely. In a forked child there are no such threads,
/// and a mutex or a condition variable may be held by one of them for ever: there it is never destroyed.
///
///     ProcessBound<Watcher> watcher_;  // started with the first call
///     if (!watcher_.is_here()) throw Error("... this process was forked from it");
template <class T>
class ProcessBound {
 public:
  ProcessBound() = default;
  explicit ProcessBound(std::unique_ptr<T> owned) : owned_(std::move(owned)) {}
  ~ProcessBound() { reset(); }
  ProcessBound(ProcessBound&& other) noexcept : owned_(std::move(other.owned_)), home_(other.home_) {}
  ProcessBound& operator=(ProcessBound&& other) noexcept {
    if (this != &other) {
      reset();
      owned_ = std::move(other.owned_);
      home_ = other.home_;
    }
    return *this;
  }

  bool is_here() const { return home_.is_here(); }
  T& operator*() const { return *owned_; }
  T* operator->() const { return owned_.get(); }
  explicit operator bool() const { return owned_ != nullptr; }
  void reset() {
    if (!is_here()) (void)owned_.release();
    owned_.reset();
  }

 private:
  std::unique_ptr<T> owned_;
  HomeProcess home_;
};

/// A thread that does one thing after the other. It starts with the first one.
///
/// In a forked child there is no such thread. What the parent had given to it stays the parent's: join() says so once,
/// and what the child gives starts a thread of the child.
class WorkerThread {
 public:
  WorkerThread();
  /// Waits for what is under way; what was not begun is dropped.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  void run(std::function<void()> work);
  /// Returns when all is done; throws what went wrong, once.
  void join();

 private:
  struct State;
  State& own();

  ProcessBound<State> state_;
};

}  // namespace levin::detail
