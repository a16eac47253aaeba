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
#include "levin/generate/serve/api_error.h"
#include "levin/generate/serve/embedding_rows.h"
#include "levin/generate/serve/requests.h"

namespace levin::serve {

/// One token of a sequence, kept for the client.
struct Piece {
  size_t sequence = 0;
  int64_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> top_logprobs = {};
  std::string text = {};
  std::string finish_reason = {};
};

/// The sequences of one request, between the model's thread and that of connections.
class Generation {
 public:
  using Clock = std::chrono::steady_clock;

  /// Pieces are kept only where they are `streamed`.
  Generation(size_t sequences, bool streamed);
  virtual ~Generation() = default;

  /// Something has come, or all has ended: called in the thread of connections, once for many tokens.
  virtual void advance() = 0;

  /// When the first token came; none before.
  std::optional<Clock::time_point> first_token() const;
  Clock::time_point began() const { return began_; }

 protected:
  /// The pieces since the last call.
  std::vector<Piece> take_pieces();
  bool is_scored() const;
  bool has_ended() const;
  /// Why there is nothing more; nothing where there is no failure.
  std::optional<ApiError> failure() const;
  /// Behind the end.
  std::vector<Generated> take_results();
  std::vector<PromptScore> take_scores();
  std::vector<at::Tensor> take_vectors();

 private:
  friend class ModelThread;
  bool on_token(const GeneratedToken& token);
  void on_done(const Generated& result);
  void on_score(size_t prompt, PromptScore score);
  void on_vector(size_t row, const at::Tensor& vector);
  void fail(int status, const std::string& message);
  bool ended_locked() const { return ended_ == sequences_ || failure_; }

  const size_t sequences_;
  const bool streamed_;
  const Clock::time_point began_ = Clock::now();
  mutable std::mutex mutex_;
  bool has_news_ = false;
  std::vector<Piece> pieces_;
  std::vector<Generated> results_;
  std::vector<PromptScore> scores_;
  std::vector<at::Tensor> vectors_;
  size_t ended_ = 0, unscored_ = 0;
  std::optional<Clock::time_point> first_;
  std::optional<ApiError> failure_;
  std::vector<uint64_t> ids_ = {};  // of the engine; the mutex of ModelThread guards them
};

/// The thread in which the model runs, for requests of all connections. A decoder has an engine, an encoder rows that
/// are embedded.
class ModelThread {
 public:
  using Generations = std::vector<std::shared_ptr<Generation>>;

  struct Options {
    Engine* engine = nullptr;
    EmbeddingRows* embeddings = nullptr;
    /// Sequences that run or wait.
    size_t most = 0;
    /// Gets those that have something new, once for each step: advance() of each is due.
    std::function<void(Generations)> deliver = {};
    /// Where a step that fails is the last one, as of ranks that have a model together: is told why.
    std::function<void(const std::string&)> on_lost = {};
  };

  explicit ModelThread(Options options);
  /// Waits for the running step. Generations that have not ended fail.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  /// An ApiError (429) where too many sequences wait, or (400) where the engine refuses an option.
  void begin(const std::shared_ptr<Generation>& generation, const GenerationRequest& request);
  void begin(const std::shared_ptr<Generation>& generation, const EmbeddingRequest& request);
  /// Its answer is sent, or its client has left before: what still runs is cancelled.
  void end(const std::shared_ptr<Generation>& generation);
  /// Runs a function between two steps and waits for it; throws what it throws.
  void run(const std::function<void()>& work);
  /// Every generation that has not ended fails: the server shuts down.
  void fail_all(int status, const std::string& message);

  /// Changes while the model comes back from its passes, and while it has nothing to do.
  int64_t heartbeat() const;
  EngineStats stats() const;
  /// Since the beginning: requests whose client left before their end.
  int64_t disconnected() const { return disconnected_; }

 private:
  struct Work {
    const std::function<void()>* function;
    std::exception_ptr error = {};
    bool done = false;
  };

  void check_room(size_t more) const;
  void add(const std::shared_ptr<Generation>& generation, const std::function<void()>& submit);
  void cancel(uint64_t id);
  void loop();
  void do_work();
  bool step(bool& lost);
  void deliver();

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Generation>> generations_;
  std::deque<Work*> work_;
  bool stopping_ = false;
  std::atomic<int64_t> disconnected_ = 0, rounds_ = 0;
  std::thread thread_;
};

}  // namespace levin::serve
