#include "levin/core/worker_thread.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "levin/core/error.h"

namespace levin::detail {

struct WorkerThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool busy = false;
  bool ends = false;
  std::exception_ptr failure;
  /// What waits or is under way; a forked child may read it though the mutex is held.
  std::atomic<int64_t> pending = 0;
  std::thread thread;

  ~State() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
      waiting.clear();
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !waiting.empty(); });
      if (ends) return;
      const auto work = std::move(waiting.front());
      waiting.pop_front();
      busy = true;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      busy = false;
      if (thrown && !failure) {
        failure = thrown;
        waiting.clear();
      }
      pending = static_cast<int64_t>(waiting.size());
      changed.notify_all();
    }
  }
};

WorkerThread::WorkerThread() : state_(std::make_unique<State>()) {}
WorkerThread::~WorkerThread() = default;

WorkerThread::State& WorkerThread::own() {
  if (state_.is_here()) [[likely]]
    return *state_;
  auto fresh = std::make_unique<State>();
  if (state_->pending > 0)
    fresh->failure = std::make_exception_ptr(
        Error("[fork] this process was forked while a thread of its parent was at work, and what that thread has done "
              "is not complete here: fork between steps"));
  state_ = ProcessBound<State>(std::move(fresh));
  return *state_;
}

void WorkerThread::run(std::function<void()> work) {
  auto& state = own();
  {
    const std::lock_guard lock(state.mutex);
    ++state.pending;
    state.waiting.push_back(std::move(work));
    if (!state.thread.joinable()) state.thread = std::thread([&state] { state.loop(); });
  }
  state.changed.notify_all();
}

void WorkerThread::join() {
  auto& state = own();
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.waiting.empty() && !state.busy; });
  if (state.failure) std::rethrow_exception(std::exchange(state.failure, nullptr));
}

}  // namespace levin::detail
