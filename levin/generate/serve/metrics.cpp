#include "levin/generate/serve/metrics.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace levin::serve {
namespace {

void write_metric(std::string& text, const char* name, const char* type, const char* help, double value) {
  text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

/// A label of Prometheus: a backslash, a quote and a newline are escaped.
std::string label(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? ' ' : c;
  }
  return text;
}

}  // namespace

void Metrics::Histogram::add(double seconds) {
  ++counts[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  sum += seconds;
}

void Metrics::Histogram::write(std::string& text, const char* name, const char* help) const {
  text += fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  int64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i)
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], count += counts[i]);
  count += counts.back();
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum);
}

void Metrics::answered(const std::string& path, int status, double seconds) {
  std::lock_guard lock(mutex_);
  ++answers_[{path, status}];
  if (path.starts_with("/v1/") && status == 200) request_.add(seconds);
}

void Metrics::first_token(double seconds) {
  std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::embedded(int64_t rows, int64_t tokens) {
  std::lock_guard lock(mutex_);
  embedded_rows_ += rows;
  embedded_tokens_ += tokens;
}

std::string Metrics::prometheus(const std::string& model, const ServerNow& now) const {
  std::string text;
  const auto gauge = [&](const char* name, const char* help, auto value) {
    write_metric(text, name, "gauge", help, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    write_metric(text, name, "counter", help, static_cast<double>(value));
  };
  const auto& e = now.engine;
  text += "# HELP levin_info The model that is served.\n# TYPE levin_info gauge\n";
  text += fmt::format("levin_info{{model=\"{}\"}} 1\n", label(model));
  gauge("levin_uptime_seconds", "Seconds since the start.", uptime());
  gauge("levin_sequences_running", "Texts that are being written.", e.running);
  gauge("levin_sequences_waiting", "Texts that wait.", e.waiting);
  gauge("levin_tokens_per_second", "New tokens per second of the last steps.", e.tokens_per_second);
  gauge("levin_cache_blocks_used", "Blocks of the key-value cache that texts hold.", e.blocks_used);
  gauge("levin_cache_blocks_reusable", "Blocks that are kept for prompts to come.", e.blocks_cached);
  gauge("levin_cache_blocks", "All blocks of the key-value cache.", e.blocks_total);
  gauge("levin_cache_bytes", "Bytes of the key-value cache.", e.cache_bytes);
  gauge("levin_memory_bytes", "Memory of the device of the model that is in use.", now.memory_bytes);
  gauge("levin_memory_peak_bytes", "The most that was in use.", now.peak_memory_bytes);
  counter("levin_sequences_finished_total", "Texts that have ended.", e.finished);
  counter("levin_sequences_cancelled_total", "Texts that were cancelled.", e.cancelled);
  counter("levin_sequences_failed_total", "Texts that have failed.", e.failed);
  counter("levin_sequences_preempted_total", "Texts that gave up their blocks and began again.", e.preempted);
  counter("levin_disconnected_total", "Requests whose client left before the end.", now.disconnected);
  counter("levin_prompt_tokens_total", "Tokens of prompts.", e.prompt_tokens);
  counter("levin_prefix_hit_tokens_total", "Tokens of prompts that were in the cache.", e.prefix_hit_tokens);
  counter("levin_generated_tokens_total", "New tokens.", e.generated_tokens);
  counter("levin_guessed_tokens_total", "Tokens that were guessed.", e.guessed_tokens);
  counter("levin_taken_tokens_total", "Guessed tokens that were right.", e.taken_tokens);
  counter("levin_steps_total", "Steps of the model.", e.steps);
  std::lock_guard lock(mutex_);
  counter("levin_embedded_rows_total", "Texts that were embedded.", embedded_rows_);
  counter("levin_embedded_tokens_total", "Their tokens.", embedded_tokens_);
  text += "# HELP levin_requests_total Answers by path and status.\n# TYPE levin_requests_total counter\n";
  for (const auto& [key, count] : answers_)
    text += fmt::format("levin_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", label(key.first), key.second, count);
  first_token_.write(text, "levin_time_to_first_token_seconds", "From a request to its first token.");
  request_.write(text, "levin_request_seconds", "From a request to the end of its answer.");
  return text;
}

std::string Metrics::json(const std::string& model, const ServerNow& now) const {
  const auto& e = now.engine;
  return nlohmann::ordered_json{{"model", model},
                                {"kind", now.kind},
                                {"uptime_seconds", uptime()},
                                {"running", e.running},
                                {"waiting", e.waiting},
                                {"finished", e.finished},
                                {"cancelled", e.cancelled},
                                {"disconnected", now.disconnected},
                                {"prompt_tokens", e.prompt_tokens},
                                {"prefix_hit_tokens", e.prefix_hit_tokens},
                                {"generated_tokens", e.generated_tokens},
                                {"guessed_tokens", e.guessed_tokens},
                                {"taken_tokens", e.taken_tokens},
                                {"tokens_per_second", e.tokens_per_second},
                                {"cache_blocks_used", e.blocks_used},
                                {"cache_blocks_reusable", e.blocks_cached},
                                {"cache_blocks", e.blocks_total},
                                {"cache_bytes", e.cache_bytes},
                                {"memory_bytes", now.memory_bytes},
                                {"memory_peak_bytes", now.peak_memory_bytes}}
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace levin::serve
