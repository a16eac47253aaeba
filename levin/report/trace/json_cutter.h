#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace levin::report {

/// Cuts the text of a trace, given in blocks, into its events and the other members of the file, without holding more
/// than one of them. Only brackets and strings are looked at; what is inside is for those who get it.
class JsonCutter {
 public:
  using Event = std::function<void(std::string_view text)>;
  using Member = std::function<void(std::string_view key, std::string_view text)>;
  /// `name` is what errors call the file.
  JsonCutter(std::string name, Event event, Member member)
      : name_(std::move(name)), event_(std::move(event)), member_(std::move(member)) {}

  void add(std::string_view block);
  /// After the last block. A text that is cut off is an Error; a list of events without its ] is not.
  void finish() const;
  /// Whether the list of events has no end yet: the ] may be left out.
  bool is_open() const;

  /// Longer events and members are an Error.
  static constexpr size_t kMost = size_t{16} << 20;

 private:
  enum class State { kStart, kKey, kColon, kValue, kAfterValue, kEvents, kEnd };

  void step(char c);
  void before_value(char c);
  void in_events(char c);
  void begin(char c, bool is_event);
  const char* take(const char* at, const char* end);
  const char* take_scalar(const char* at, const char* end);
  void hand_over();
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  Event event_;
  Member member_;
  State state_ = State::kStart;
  std::string key_, piece_;
  uint64_t events_ = 0, bytes_ = 0;
  int depth_ = 0;
  bool is_array_ = false, taking_ = false, taking_key_ = false, taking_scalar_ = false, taking_event_ = false;
  bool in_string_ = false, escaped_ = false, needs_comma_ = false, seen_events_ = false;
};

}  // namespace levin::report
