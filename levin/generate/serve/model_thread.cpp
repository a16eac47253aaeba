#include "levin/generate/serve/model_thread.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/generate/sampler.h"

namespace levin::serve {
namespace {

constexpr std::chrono::milliseconds kIdle{20};

}  // namespace

Generation::Generation(size_t sequences, bool streamed)
    : sequences_(sequences), streamed_(streamed), results_(sequences), vectors_(sequences) {}

std::vector<Piece> Generation::take_pieces() {
  const std::lock_guard lock(mutex_);
  return std::exchange(pieces_, {});
}

bool Generation::is_scored() const {
  const std::lock_guard lock(mutex_);
  return unscored_ == 0;
}

bool Generation::has_ended() const {
  const std::lock_guard lock(mutex_);
  return ended_locked();
}

std::optional<ApiError> Generation::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<Generated> Generation::take_results() {
  const std::lock_guard lock(mutex_);
  return std::move(results_);
}

std::vector<PromptScore> Generation::take_scores() {
  const std::lock_guard lock(mutex_);
  return std::move(scores_);
}

std::vector<at::Tensor> Generation::take_vectors() {
  const std::lock_guard lock(mutex_);
  return std::move(vectors_);
}

std::optional<Generation::Clock::time_point> Generation::first_token() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

bool Generation::on_token(const GeneratedToken& token) {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = Clock::now();
  if (!streamed_) return !failure_;
  pieces_.push_back({.sequence = token.row,
                     .id = token.id,
                     .logprob = token.logprob,
                     .top_logprobs = {token.top_logprobs.begin(), token.top_logprobs.end()},
                     .text = token.text,
                     .finish_reason = token.finish_reason});
  has_news_ = true;
  return !failure_;
}

void Generation::on_done(const Generated& result) {
  const std::lock_guard lock(mutex_);
  if (result.row < results_.size()) results_[result.row] = result;
  ++ended_;
  has_news_ = true;
}

void Generation::on_score(size_t prompt, PromptScore score) {
  const std::lock_guard lock(mutex_);
  scores_.at(prompt) = std::move(score);
  --unscored_;
  has_news_ = true;
}

void Generation::on_vector(size_t row, const at::Tensor& vector) {
  const std::lock_guard lock(mutex_);
  vectors_.at(row) = vector;
  ++ended_;
  has_news_ = true;
}

void Generation::fail(int status, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (ended_locked()) return;
  failure_.emplace(status, message);
  has_news_ = true;
}

ModelThread::ModelThread(Options options) : options_(std::move(options)), thread_([this] { loop(); }) {}

ModelThread::~ModelThread() {
  fail_all(503, "The server is shutting down.");
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ModelThread::check_room(size_t more) const {
  size_t taken = 0;
  for (const auto& other : generations_) {
    const std::lock_guard lock(other->mutex_);
    taken += other->sequences_ - std::min(other->ended_, other->sequences_);
  }
  if (taken + more > options_.most)
    throw ApiError(429, fmt::format("The queue is full: {} texts are being written or wait. Try again later.", taken),
                   {}, "queue_full");
}

void ModelThread::add(const std::shared_ptr<Generation>& generation, const std::function<void()>& submit) {
  try {
    submit();
  } catch (const std::exception& error) {
    for (const auto id : generation->ids_) cancel(id);
    throw ApiError(400, one_line(error));
  }
  generations_.push_back(generation);
}

void ModelThread::begin(const std::shared_ptr<Generation>& generation, const GenerationRequest& request) {
  LEVIN_CHECK(options_.engine, "[serve] this model does not generate");
  const std::lock_guard lock(mutex_);
  check_room(generation->sequences_);
  const bool scores = request.echo && request.logprobs;
  if (scores) {
    const std::lock_guard inner(generation->mutex_);
    generation->scores_.resize(request.prompts.size());
    generation->unscored_ = request.prompts.size();
  }
  auto options = request.options;
  if (request.score_only) options.num_return_sequences = 1;
  const auto each = static_cast<size_t>(options.num_return_sequences);
  add(generation, [&] {
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      EngineRequest one{.prompt = request.prompts[i],
                        .options = options,
                        .on_token = [generation](const GeneratedToken& token) { return generation->on_token(token); },
                        .score_only = request.score_only && scores,
                        .on_done = [generation](const Generated& result) { generation->on_done(result); },
                        .on_error =
                            [generation](const std::string& line) {
                              const bool is_asked = line.find(levin::detail::kNoneAllowed) != line.npos;
                              generation->fail(is_asked ? 400 : 500, line);
                            },
                        .row = i * each};
      if (scores) one.on_score = [generation, i](PromptScore score) { generation->on_score(i, std::move(score)); };
      generation->ids_.push_back(options_.engine->submit(std::move(one)));
    }
  });
}

void ModelThread::begin(const std::shared_ptr<Generation>& generation, const EmbeddingRequest& request) {
  LEVIN_CHECK(options_.embeddings, "[serve] this model does not embed");
  const std::lock_guard lock(mutex_);
  // One request may have more texts than the queue; it only waits its turn.
  if (!generations_.empty()) check_room(generation->sequences_);
  add(generation, [&] {
    generation->ids_.push_back(options_.embeddings->submit(
        {.rows = request.rows,
         .on_vector = [generation](size_t row, const at::Tensor& vector) { generation->on_vector(row, vector); },
         .on_error = [generation](const std::string& line) { generation->fail(500, line); }}));
  });
}

void ModelThread::cancel(uint64_t id) {
  if (options_.engine)
    options_.engine->cancel(id);
  else
    options_.embeddings->cancel(id);
}

void ModelThread::end(const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  if (generations_.remove(generation) == 0) return;
  {
    const std::lock_guard inner(generation->mutex_);
    if (generation->ended_ == generation->sequences_) return;
    if (!generation->failure_) {
      ++disconnected_;
      generation->failure_.emplace(499, "The client has left.");
    }
  }
  for (const auto id : generation->ids_) cancel(id);
}

void ModelThread::run(const std::function<void()>& function) {
  Work work{.function = &function};
  std::unique_lock lock(mutex_);
  work_.push_back(&work);
  changed_.wait(lock, [&] { return work.done; });
  if (work.error) std::rethrow_exception(work.error);
}

void ModelThread::fail_all(int status, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& generation : generations_) {
      generation->fail(status, message);
      for (const auto id : generation->ids_) cancel(id);
    }
  }
  deliver();
}

void ModelThread::deliver() {
  Generations news;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& generation : generations_) {
      const std::lock_guard inner(generation->mutex_);
      if (std::exchange(generation->has_news_, false)) news.push_back(generation);
    }
  }
  if (!news.empty() && options_.deliver) options_.deliver(std::move(news));
}

int64_t ModelThread::heartbeat() const {
  return rounds_ + stats().passes;
}

EngineStats ModelThread::stats() const {
  return options_.engine ? options_.engine->stats() : options_.embeddings->stats();
}

void ModelThread::do_work() {
  std::unique_lock lock(mutex_);
  while (!work_.empty()) {
    auto* work = work_.front();
    lock.unlock();
    try {
      (*work->function)();
    } catch (...) {
      work->error = std::current_exception();
    }
    lock.lock();
    work_.pop_front();
    work->done = true;  // after this it may be gone
    changed_.notify_all();
  }
}

bool ModelThread::step(bool& lost) {
  try {
    return options_.engine ? options_.engine->step() : options_.embeddings->step();
  } catch (const std::exception& error) {
    // What a request did wrong was told to it; this is the model itself (memory, a device, a rank).
    if (options_.on_lost) {
      fail_all(500, "The model has failed.");
      options_.on_lost(one_line(error));
      lost = true;
      return false;
    }
    log_warning(fmt::format("a step has failed: {}", one_line(error)));
    fail_all(500, fmt::format("The model has failed: {}", one_line(error)));
    return true;
  }
}

void ModelThread::loop() {
  for (bool lost = false;; ++rounds_) {
    do_work();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && work_.empty()) return;
    }
    if (lost) {
      std::this_thread::sleep_for(kIdle);
    } else if (step(lost)) {
      deliver();
    } else if (options_.engine) {
      options_.engine->wait(kIdle);
    } else {
      options_.embeddings->wait(kIdle);
    }
  }
}

}  // namespace levin::serve
