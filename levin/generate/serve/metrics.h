#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "levin/generate/engine.h"

namespace levin::serve {

/// What is read at the moment it is asked for.
struct ServerNow {
  /// What the page offers: "chat", "text" (there is no chat template) or "embeddings".
  std::string kind = {};
  EngineStats engine = {};
  int64_t memory_bytes = 0, peak_memory_bytes = 0, disconnected = 0;
};

/// Counts of a server, as text for Prometheus and as JSON for the page.
class Metrics {
 public:
  using Clock = std::chrono::steady_clock;

  void answered(const std::string& path, int status, double seconds);
  void first_token(double seconds);
  void embedded(int64_t rows, int64_t tokens);

  std::string prometheus(const std::string& model, const ServerNow& now) const;
  std::string json(const std::string& model, const ServerNow& now) const;

 private:
  /// Seconds, in buckets as Prometheus has them.
  struct Histogram {
    static constexpr std::array kBounds{0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                        1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 120.0};
    std::array<int64_t, kBounds.size() + 1> counts = {};
    double sum = 0;

    void add(double seconds);
    void write(std::string& text, const char* name, const char* help) const;
  };

  double uptime() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  const Clock::time_point began_ = Clock::now();
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answers_;
  Histogram first_token_, request_;
  int64_t embedded_rows_ = 0, embedded_tokens_ = 0;
};

}  // namespace levin::serve
