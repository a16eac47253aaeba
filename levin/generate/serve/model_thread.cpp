#include "levin/generate/serve/model_thread.h"

#include <algorithm>

#include <fmt/format.h>
#include <poll.h>

#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/generate/sampler.h"
#include "levin/generate/serve/api_error.h"

namespace levin::serve {
namespace {

constexpr std::chrono::milliseconds kIdle{20};

}  // namespace

Generation::Generation(size_t sequences, bool streamed, int socket)
    : sequences_(sequences), streamed_(streamed), socket_(socket), results_(sequences) {}

bool Generation::has_ended() const {
  return ended_ == sequences_ || failed_status_ != 0;
}

bool Generation::take(std::vector<Piece>& pieces) {
  pieces.clear();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !pieces_.empty() || has_ended(); });
  if (failed_status_) throw ApiError(failed_status_, failure_);
  pieces.swap(pieces_);
  return !pieces.empty();
}

std::vector<Generated> Generation::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return has_ended(); });
  if (failed_status_) throw ApiError(failed_status_, failure_);
  return std::move(results_);
}

std::optional<Generation::Clock::time_point> Generation::first_token() const {
  std::lock_guard lock(mutex_);
  return first_;
}

bool Generation::on_token(const GeneratedToken& token) {
  std::lock_guard lock(mutex_);
  if (!first_) first_ = Clock::now();
  if (!streamed_) return failed_status_ == 0;
  pieces_.push_back({.sequence = token.row,
                     .id = token.id,
                     .logprob = token.logprob,
                     .top_logprobs = {token.top_logprobs.begin(), token.top_logprobs.end()},
                     .text = token.text,
                     .finish_reason = token.finish_reason});
  changed_.notify_one();
  return failed_status_ == 0;
}

void Generation::on_done(const Generated& result) {
  std::lock_guard lock(mutex_);
  if (result.row < results_.size()) results_[result.row] = result;
  ++ended_;
  changed_.notify_one();
}

void Generation::fail(int status, const std::string& message) {
  std::lock_guard lock(mutex_);
  if (has_ended()) return;
  failed_status_ = status;
  failure_ = message;
  changed_.notify_one();
}

ModelThread::ModelThread(Engine* engine, size_t most, std::function<void(const std::string&)> on_lost)
    : engine_(engine), most_(most), on_lost_(std::move(on_lost)), thread_([this] { loop(); }) {}

ModelThread::~ModelThread() {
  fail_all(503, "The server is shutting down.");
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Generation> ModelThread::begin(const GenerationRequest& request, int socket) {
  LEVIN_CHECK(engine_, "[serve] this model does not generate");
  auto generation = std::make_shared<Generation>(request.sequences(), request.stream, socket);
  std::lock_guard lock(mutex_);
  size_t waiting = 0;
  for (const auto& other : generations_) waiting += other->sequences_;
  if (waiting + request.sequences() > most_)
    throw ApiError(429, fmt::format("The queue is full: {} texts are being written or wait. Try again later.", waiting),
                   {}, "queue_full");
  const auto each = static_cast<size_t>(request.options.num_return_sequences);
  try {
    for (size_t i = 0; i < request.prompts.size(); ++i)
      generation->ids_.push_back(engine_->submit(
          {.prompt = request.prompts[i],
           .options = request.options,
           .on_token = [generation](const GeneratedToken& token) { return generation->on_token(token); },
           .on_done = [generation](const Generated& result) { generation->on_done(result); },
           .on_error =
               [generation](const std::string& line) {
                 const bool is_asked = line.find(levin::detail::kNoneAllowed) != line.npos;
                 generation->fail(is_asked ? 400 : 500, line);
               },
           .row = i * each}));
  } catch (const std::exception& error) {
    for (const auto id : generation->ids_) engine_->cancel(id);
    throw ApiError(400, one_line(error));
  }
  generations_.push_back(generation);
  return generation;
}

void ModelThread::end(const std::shared_ptr<Generation>& generation) {
  std::lock_guard lock(mutex_);
  generations_.remove(generation);
  {
    std::lock_guard inner(generation->mutex_);
    if (generation->has_ended() && generation->failed_status_ == 0) return;
    // A write to the client has failed before the socket was seen to be closed.
    if (generation->failed_status_ == 0) ++disconnected_;
  }
  for (const auto id : generation->ids_) engine_->cancel(id);
}

void ModelThread::run(const std::function<void()>& function) {
  Work work{.function = &function};
  std::unique_lock lock(mutex_);
  work_.push_back(&work);
  changed_.notify_all();
  changed_.wait(lock, [&] { return work.done; });
  if (work.error) std::rethrow_exception(work.error);
}

void ModelThread::fail_all(int status, const std::string& message) {
  std::lock_guard lock(mutex_);
  for (const auto& generation : generations_) {
    generation->fail(status, message);
    for (const auto id : generation->ids_) engine_->cancel(id);
  }
}

size_t ModelThread::active() const {
  std::lock_guard lock(mutex_);
  size_t count = work_.size();
  for (const auto& generation : generations_) count += generation->sequences_;
  return count;
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

/// One call asks the system about all clients, before every step: one that has left costs no further token.
void ModelThread::cancel_left() {
  std::lock_guard lock(mutex_);
  std::vector<pollfd> sockets;
  std::vector<Generation*> watched;
  for (const auto& generation : generations_) {
    const std::lock_guard inner(generation->mutex_);
    if (generation->has_ended()) continue;  // its connection knows, or is about to
    sockets.push_back({.fd = generation->socket_, .events = POLLRDHUP, .revents = 0});
    watched.push_back(generation.get());
  }
  if (sockets.empty() || poll(sockets.data(), sockets.size(), 0) <= 0) return;
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (!(sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) continue;
    for (const auto id : watched[i]->ids_) engine_->cancel(id);
    watched[i]->fail(499, "The client has left.");
    ++disconnected_;
  }
}

bool ModelThread::step(bool& lost) {
  try {
    return engine_->step();
  } catch (const std::exception& error) {
    // What a request did wrong was told to it; this is the model itself (memory, a device, a rank).
    if (on_lost_) {
      fail_all(500, "The model has failed.");
      on_lost_(one_line(error));
      lost = true;
      return false;
    }
    log_warning(fmt::format("a step has failed: {}", one_line(error)));
    fail_all(500, fmt::format("The model has failed: {}", one_line(error)));
    return true;
  }
}

void ModelThread::loop() {
  for (bool lost = false;;) {
    do_work();
    const bool steps = engine_ && !lost;
    {
      std::unique_lock lock(mutex_);
      if (stopping_ && work_.empty()) return;
      if (!steps) changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
    }
    if (!steps) continue;
    cancel_left();
    if (!step(lost) && !lost) engine_->wait(kIdle);
  }
}

}  // namespace levin::serve
