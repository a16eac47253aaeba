#include "levin/data/loader_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/trace_span.h"

namespace levin::detail {
namespace {

using EngineClock = std::chrono::steady_clock;

// Torch's own functions must not start a team of threads in each of our threads. Its setting is per thread only inside
// OpenMP, and torch::set_num_threads would change it for the whole process.
void one_thread_per_operator() {
  at::get_num_threads();  // sets this thread's number up, once
  using Set = void (*)(int);
  static const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set) set(1);
}

// After fork() the first new thread that asks for this number makes torch's own pool again, and a second one that asks
// meanwhile finds none. So one asks alone, before the workers do.
void prepare_threads_of_torch() {
  std::thread([] {
    try {
      at::get_num_threads();
    } catch (const std::exception&) {  // the workers ask again, and what they throw is told
    }
  }).join();
}

void become_worker() {
  // Signals are for the program's own threads.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "levin-data");
  // Where cores are short, whoever gives work to the device or computes comes first; once it has to wait for data it
  // sleeps, and this thread gets the core. Of a thread alone, in Linux; a refusal changes nothing.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 5);
  one_thread_per_operator();
}

struct Job {
  std::shared_ptr<BatchWork> work;
  int64_t samples = 0;
  int64_t taken = 0;      // under the lock
  int64_t remaining = 0;  // under the lock
  bool done = false;      // under the lock
  std::exception_ptr error;
};

}  // namespace

struct LoaderEngine::State {
  EngineOptions options;
  /// The process that has the threads.
  pid_t process = ::getpid();
  std::mutex mutex;
  std::condition_variable work_came, batch_came;
  Next next;
  std::deque<std::shared_ptr<Job>> jobs;  // in order
  bool ended = true;                      // no further batch in this pass
  bool stopping = false;
  double waited = 0;
  std::exception_ptr next_error;
  /// What ended a thread: no batch of this pass can be relied on to come.
  std::exception_ptr thread_error;
  std::vector<std::thread> threads;

  void ensure_threads() {
    if (!threads.empty()) return;
    stopping = false;
    threads.reserve(static_cast<size_t>(options.workers));
    try {
      prepare_threads_of_torch();
      for (int i = 0; i < options.workers; ++i) threads.emplace_back([this] { run(); });
    } catch (const std::system_error& error) {
      const auto made = threads.size();
      stop_threads();
      fail(concat("[data] thread ", made + 1, " of num_workers ", options.workers, " could not be started (",
                  error.code().message(), "): ask for fewer, or raise the limit of processes (ulimit -u)"));
    }
  }

  void stop_threads() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work_came.notify_all();
    for (auto& thread : threads) thread.join();
    threads.clear();
  }

  // A job with samples that nobody has taken; begins a new batch when there is none and there may be one more.
  std::shared_ptr<Job> open_job() {
    for (const auto& job : jobs)
      if (job->taken < job->samples) return job;
    if (ended || static_cast<int64_t>(jobs.size()) >= options.ahead) return nullptr;
    auto job = std::make_shared<Job>();
    try {
      job->work = next();
    } catch (...) {
      next_error = std::current_exception();
    }
    if (!job->work) {
      ended = true;
      batch_came.notify_all();
      return nullptr;
    }
    job->samples = job->remaining = job->work->samples();
    jobs.push_back(job);
    return job;
  }

  void run() noexcept {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      thread_error = std::current_exception();
      batch_came.notify_all();
    }
  }

  void work() {
    become_worker();
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex);
    while (!stopping) {
      const auto job = open_job();
      if (!job) {
        work_came.wait(lock);
        continue;
      }
      // A few at once, so that small samples do not spend their time on the lock, yet all threads end together.
      const int64_t few = std::clamp<int64_t>(job->samples / (options.workers * 4), 1, 16);
      const int64_t first = job->taken, last = std::min(first + few, job->samples);
      job->taken = last;
      // Each wakes the next while there is more to do: all at once would take every core from the training for a
      // moment.
      work_came.notify_one();
      lock.unlock();
      {
        const TracedWork traced;
        const TraceSpan span("[DataLoader]make_samples");
        for (int64_t i = first; i < last; ++i) job->work->make(i);
      }
      lock.lock();
      job->remaining -= last - first;
      if (job->remaining > 0) continue;
      lock.unlock();
      try {
        const TracedWork traced;
        const TraceSpan span("[DataLoader]finish_batch");
        job->work->finish();
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      job->done = true;
      batch_came.notify_all();
    }
  }
};

LoaderEngine::LoaderEngine(const EngineOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
}

LoaderEngine::~LoaderEngine() {
  own().options.persistent = false;
  end();
}

bool LoaderEngine::is_from_parent() const {
  return state_->process != ::getpid();
}

// Threads that are gone cannot be joined, and a mutex may be theirs: what belongs to the parent is left as it is.
LoaderEngine::State& LoaderEngine::own() {
  if (!is_from_parent()) return *state_;
  auto fresh = std::make_unique<State>();
  fresh->options = state_->options;
  fresh->next_error = std::make_exception_ptr(Error(
      "[data] this pass of the loader was begun before fork(), and its threads are in the parent: begin a new pass "
      "in the child"));
  (void)state_.release();
  state_ = std::move(fresh);
  return *state_;
}

void LoaderEngine::start(Next next) {
  auto& state = own();
  bool failed = false;
  {
    const std::lock_guard lock(state.mutex);
    failed = state.thread_error != nullptr;
  }
  if (failed) state.stop_threads();
  {
    const std::lock_guard lock(state.mutex);
    state.jobs.clear();
    state.next = std::move(next);
    state.next_error = state.thread_error = nullptr;
    state.ended = false;
  }
  state.ensure_threads();
  state.work_came.notify_all();
}

void LoaderEngine::end() {
  auto& state = own();
  {
    const std::lock_guard lock(state.mutex);
    state.jobs.clear();
    state.ended = true;
    state.next = nullptr;
  }
  if (!state.options.persistent) state.stop_threads();
}

std::shared_ptr<BatchWork> LoaderEngine::next() {
  auto& state = own();
  std::unique_lock lock(state.mutex);
  const auto ready = [&] {
    return state.thread_error || (state.jobs.empty() ? state.ended : state.jobs.front()->done);
  };
  if (!ready()) {
    const auto begin = EngineClock::now();
    const auto waited = [&] { return std::chrono::duration<double>(EngineClock::now() - begin).count(); };
    constexpr double kPatience = 30;
    const double limit = state.options.timeout;
    const auto name = [&] {
      return state.jobs.empty() ? std::string("the next batch") : state.jobs.front()->work->name();
    };
    double said = 0;
    while (!ready()) {
      const double step = limit > 0 ? std::min(limit - waited(), kPatience) : kPatience;
      if (state.batch_came.wait_for(lock, std::chrono::duration<double>(std::max(step, 0.001)), ready)) break;
      LEVIN_CHECK(limit <= 0 || waited() < limit, "[data] ", name(), " did not come within ", limit,
                  " s (timeout); a sample takes too long, or a disk does not answer");
      if (waited() - said >= kPatience) {
        said = waited();
        log_warning(fmt::format("[data] still waiting for {} after {:.0f} s", name(), said));
      }
    }
    state.waited += waited();
  }
  if (state.thread_error) std::rethrow_exception(state.thread_error);
  if (state.jobs.empty()) {
    if (state.next_error) std::rethrow_exception(std::exchange(state.next_error, nullptr));
    return nullptr;
  }
  const auto job = state.jobs.front();
  state.jobs.pop_front();
  lock.unlock();
  state.work_came.notify_one();
  if (job->error) std::rethrow_exception(job->error);
  return job->work;
}

double LoaderEngine::waited() {
  auto& state = own();
  const std::lock_guard lock(state.mutex);
  return state.waited;
}

int usable_cores() {
  int cores = std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cores = std::min(cores, std::max(CPU_COUNT(&mask), 1));
  // A container's share: "200000 100000" is two cores, "max 100000" all of them.
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0)
      cores = std::min(cores, std::max(static_cast<int>(std::ceil(quota / period)), 1));
  }
  return cores;
}

}  // namespace levin::detail
