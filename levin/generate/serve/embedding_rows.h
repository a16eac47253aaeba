#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "levin/generate/engine.h"
#include "levin/models/sentence_embedding.h"

namespace levin::serve {

/// Rows of tokens that wait for an encoder. A step takes a few of them, in turns of the requests, so that a long
/// request does not keep short ones waiting. Called as an Engine is.
class EmbeddingRows {
 public:
  /// Rows of a step at most, and tokens with their padding (one row has as many as it has).
  static constexpr size_t kStepRows = 32;
  static constexpr int64_t kStepTokens = 1024, kStepTokensOfDevice = 16384;

  struct Request {
    std::vector<std::vector<int64_t>> rows = {};
    /// In the thread of step(): the vector of a row, float32 [D].
    std::function<void(size_t row, const at::Tensor& vector)> on_vector = {};
    std::function<void(const std::string& line)> on_error = {};
  };

  EmbeddingRows(models::LanguageModel model, models::SentencePooling pooling);

  /// From any thread.
  uint64_t submit(Request request);
  void cancel(uint64_t id);
  EngineStats stats() const;
  bool wait(std::chrono::milliseconds most);
  /// One thread. False: nothing to do.
  bool step();

 private:
  struct Task {
    uint64_t id;
    std::shared_ptr<const Request> request;
    size_t next = 0;  // the first row that is not computed
  };
  struct Place {
    uint64_t id;
    std::shared_ptr<const Request> request;
    size_t row;
  };

  /// The rows of the next step, taken from the tasks in turns.
  std::vector<Place> take();
  void fail(const std::vector<Place>& places, const std::string& line);

  models::LanguageModel model_;
  const models::SentencePooling pooling_;
  const int64_t step_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::set<uint64_t> computing_;  // of the step under way; who leaves is taken out
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

}  // namespace levin::serve
