#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "levin/generate/engine.h"
#include "levin/generate/serve/requests.h"

namespace levin::serve {

/// One token of a sequence, kept for the thread that writes it to the client.
struct Piece {
  size_t sequence = 0;
  int64_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> top_logprobs = {};
  std::string text = {};
  std::string finish_reason = {};
};

/// The sequences of one request, between the model's thread and that of its connection.
class Generation {
 public:
  using Clock = std::chrono::steady_clock;

  /// Pieces are kept only where they are `streamed`. `socket`: of the client, which is watched; -1: none.
  Generation(size_t sequences, bool streamed, int socket);

  /// Waits for pieces and takes them all; false when there are none and all sequences have ended. An ApiError where the
  /// request has failed.
  bool take(std::vector<Piece>& pieces);
  /// Waits for the end: a result for each sequence.
  std::vector<Generated> wait();

  Clock::time_point began() const { return began_; }
  /// When the first token came; none before.
  std::optional<Clock::time_point> first_token() const;

 private:
  friend class ModelThread;
  bool on_token(const GeneratedToken& token);
  void on_done(const Generated& result);
  void fail(int status, const std::string& message);
  bool has_ended() const;  // with the mutex held

  const size_t sequences_;
  const bool streamed_;
  const int socket_;
  const Clock::time_point began_ = Clock::now();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  std::vector<Generated> results_;
  size_t ended_ = 0;
  std::optional<Clock::time_point> first_;
  int failed_status_ = 0;
  std::string failure_;
  std::vector<uint64_t> ids_ = {};  // of the engine; the mutex of ModelThread guards them
};

/// The thread in which the model runs, for requests of all connections.
class ModelThread {
 public:
  /// Without an engine (an encoder) there is only run(). `most`: sequences that run or wait. `on_lost`: where a step
  /// that fails is the last one, as of ranks that have a model together, it is told why.
  ModelThread(Engine* engine, size_t most, std::function<void(const std::string&)> on_lost = {});
  /// Waits for the running step. Generations that have not ended fail.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  /// An ApiError (429) where too many sequences wait, or (400) where the engine refuses an option.
  std::shared_ptr<Generation> begin(const GenerationRequest& request, int socket);
  /// Must be called before the socket is closed: it is not watched any longer, and what still runs is cancelled.
  void end(const std::shared_ptr<Generation>& generation);
  /// Runs a function between two steps and waits for it; throws what it throws.
  void run(const std::function<void()>& work);
  /// Every generation that has not ended fails: the server shuts down.
  void fail_all(int status, const std::string& message);

  /// Sequences that run or wait.
  size_t active() const;
  /// Since the beginning: requests whose client left before their end.
  int64_t disconnected() const { return disconnected_; }

 private:
  struct Work {
    const std::function<void()>* function;
    std::exception_ptr error = {};
    bool done = false;
  };

  void loop();
  void do_work();
  void cancel_left();
  bool step(bool& lost);

  Engine* engine_;
  const size_t most_;
  const std::function<void(const std::string&)> on_lost_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Generation>> generations_;
  std::deque<Work*> work_;
  bool stopping_ = false;
  std::atomic<int64_t> disconnected_ = 0;
  std::thread thread_;
};

}  // namespace levin::serve
