#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace levin::detail {

/// A thread that does one thing after the other. It starts with the first one.
class WorkerThread {
 public:
  WorkerThread() = default;
  /// Waits for what is under way; what was not begun is dropped.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  void run(std::function<void()> work);
  /// Returns when all is done; throws what went wrong, once.
  void join();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool busy_ = false;
  bool ends_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace levin::detail
