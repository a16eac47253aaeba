#include "levin/generate/serve/embedding_rows.h"

#include <algorithm>

#include "levin/core/main.h"

namespace levin::serve {

EmbeddingRows::EmbeddingRows(models::LanguageModel model, models::SentencePooling pooling)
    : model_(std::move(model)),
      pooling_(std::move(pooling)),
      step_tokens_(model_.module().parameters().at(0).is_cpu() ? kStepTokens : kStepTokensOfDevice) {}

uint64_t EmbeddingRows::submit(Request request) {
  const std::lock_guard lock(mutex_);
  stats_.waiting += std::ssize(request.rows);
  for (const auto& row : request.rows) stats_.prompt_tokens += std::ssize(row);
  tasks_.push_back({.id = next_id_, .request = std::make_shared<const Request>(std::move(request))});
  changed_.notify_all();
  return next_id_++;
}

void EmbeddingRows::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  computing_.erase(id);
  const auto at = std::ranges::find(tasks_, id, &Task::id);
  if (at == tasks_.end()) return;
  const auto left = static_cast<int64_t>(at->request->rows.size() - at->next);
  stats_.waiting -= left;
  stats_.cancelled += left;
  tasks_.erase(at);
}

EngineStats EmbeddingRows::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool EmbeddingRows::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return !tasks_.empty(); });
}

std::vector<EmbeddingRows::Place> EmbeddingRows::take() {
  const std::lock_guard lock(mutex_);
  std::vector<Place> places;
  int64_t longest = 0;
  // A row of each request in turn. The first one that does not fit begins the next step.
  while (!tasks_.empty() && places.size() < kStepRows) {
    auto& task = tasks_.front();
    const auto wide = std::max<int64_t>(longest, std::ssize(task.request->rows[task.next]));
    if (!places.empty() && wide * (std::ssize(places) + 1) > step_tokens_) break;
    longest = wide;
    places.push_back({.id = task.id, .request = task.request, .row = task.next++});
    computing_.insert(task.id);
    auto taken = std::move(task);
    tasks_.pop_front();
    if (taken.next < taken.request->rows.size()) tasks_.push_back(std::move(taken));
  }
  stats_.waiting -= std::ssize(places);
  stats_.running = std::ssize(places);
  return places;
}

void EmbeddingRows::fail(const std::vector<Place>& places, const std::string& line) {
  std::set<std::shared_ptr<const Request>> failed;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& place : places)
      if (computing_.contains(place.id)) failed.insert(place.request);
    for (const auto& request : failed) {
      const auto at = std::ranges::find(tasks_, request, &Task::request);
      if (at == tasks_.end()) continue;
      const auto left = static_cast<int64_t>(request->rows.size() - at->next);
      stats_.waiting -= left;
      stats_.failed += left;
      tasks_.erase(at);
    }
    stats_.failed += std::ssize(places);
    stats_.running = 0;
    computing_.clear();
  }
  for (const auto& request : failed) request->on_error(line);
}

bool EmbeddingRows::step() {
  const auto places = take();
  if (places.empty()) return false;
  std::vector<std::vector<int64_t>> rows;
  for (const auto& place : places) rows.push_back(place.request->rows[place.row]);
  at::Tensor vectors;
  try {
    vectors = models::embed_rows(model_, rows, pooling_, std::ssize(rows)).contiguous();
  } catch (const std::exception& error) {
    fail(places, one_line(error));
    return true;
  }
  std::set<uint64_t> present;
  {
    const std::lock_guard lock(mutex_);
    present.swap(computing_);
    for (const auto& place : places) ++(present.contains(place.id) ? stats_.finished : stats_.cancelled);
    stats_.running = 0;
    ++stats_.steps;
    ++stats_.passes;
  }
  for (size_t i = 0; i < places.size(); ++i)
    if (present.contains(places[i].id)) places[i].request->on_vector(places[i].row, vectors[static_cast<int64_t>(i)]);
  return true;
}

}  // namespace levin::serve
