#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// Optimizer steps, as an amount: `500_steps`.
struct Steps {
  int64_t count = 0;
};
/// Batches, as an amount: `500_batches`.
struct Batches {
  int64_t count = 0;
};

namespace literals {
constexpr Steps operator""_steps(unsigned long long n) {
  return {static_cast<int64_t>(n)};
}
constexpr Batches operator""_batches(unsigned long long n) {
  return {static_cast<int64_t>(n)};
}
}  // namespace literals

/// A fraction of something, or a number of batches of it: `0.25` is a quarter, `10` and `10_batches` are ten. A double
/// is a fraction and an integer is a number, so 1.0 is everything and 1 is one batch.
class Limit {
 public:
  Limit() = default;
  template <std::integral I>
  requires(!std::same_as<I, bool>) Limit(I count) : count_(static_cast<int64_t>(count)) {}
  template <std::floating_point F>
  Limit(F fraction) : fraction_(static_cast<double>(fraction)) {}
  Limit(Batches batches) : count_(batches.count) {}
  /// "0.25", "10", "10 batches".
  Limit(const char* text);
  Limit(std::string_view text);
  Limit(const std::string& text) : Limit(std::string_view(text)) {}

  bool is_fraction() const { return !count_; }
  double fraction() const { return fraction_; }
  int64_t count() const { return count_.value_or(0); }
  bool is_zero() const { return count_ ? *count_ == 0 : fraction_ == 0; }
  bool is_all() const { return !count_ && fraction_ == 1.0; }
  std::string to_string() const;

 private:
  std::optional<int64_t> count_;
  double fraction_ = 1.0;
};

/// A length of time: `std::chrono::minutes(30)`, or "DD:HH:MM:SS", "30 min", "90 s", "1.5 h", "2 d".
class Duration {
 public:
  Duration() = default;
  template <class R, class P>
  Duration(std::chrono::duration<R, P> time) : seconds_(std::chrono::duration<double>(time).count()) {}
  Duration(const char* text);
  Duration(std::string_view text);
  Duration(const std::string& text) : Duration(std::string_view(text)) {}

  double seconds() const { return seconds_; }
  /// "00:01:02:03", or "1.5 s".
  std::string to_string() const;

 private:
  double seconds_ = 0;
};

/// How often: a fraction of an epoch (`0.25`), a number of batches (`100`, `100_batches`), of optimizer steps
/// (`500_steps`), or a time (`30min`, "00:00:30:00").
class Interval {
 public:
  enum class Unit { kFraction, kBatches, kSteps, kTime };

  Interval() = default;
  template <std::integral I>
  requires(!std::same_as<I, bool>) Interval(I batches) : unit_(Unit::kBatches), amount_(static_cast<double>(batches)) {}
  template <std::floating_point F>
  Interval(F fraction) : amount_(static_cast<double>(fraction)) {}
  Interval(Steps steps) : unit_(Unit::kSteps), amount_(static_cast<double>(steps.count)) {}
  Interval(Batches batches) : unit_(Unit::kBatches), amount_(static_cast<double>(batches.count)) {}
  template <class R, class P>
  Interval(std::chrono::duration<R, P> time) : unit_(Unit::kTime), amount_(Duration(time).seconds()) {}
  /// "0.25", "100", "100 batches", "500 steps", or a Duration.
  Interval(const char* text);
  Interval(std::string_view text);
  Interval(const std::string& text) : Interval(std::string_view(text)) {}

  Unit unit() const { return unit_; }
  double fraction() const { return amount_; }
  int64_t count() const { return static_cast<int64_t>(amount_); }
  double seconds() const { return amount_; }
  std::string to_string() const;

 private:
  Unit unit_ = Unit::kFraction;
  double amount_ = 1.0;
};

/// Whether only deterministic algorithms may run: `true`, `false`, or "warn" (run the others and say so).
class Deterministic {
 public:
  Deterministic() = default;
  Deterministic(bool on) : mode_(on ? "true" : "false") {}
  Deterministic(const char* text) : Deterministic(std::string(text)) {}
  /// "true", "false" or "warn".
  Deterministic(std::string text);

  bool is_set() const { return !mode_.empty(); }
  bool is_on() const { return mode_ == "true" || mode_ == "warn"; }
  bool only_warns() const { return mode_ == "warn"; }
  const std::string& to_string() const { return mode_; }

 private:
  std::string mode_;
};

}  // namespace levin
