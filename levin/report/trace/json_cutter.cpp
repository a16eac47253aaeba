#include "levin/report/trace/json_cutter.h"

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::report {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

void JsonCutter::fail(const std::string& what) const {
  levin::detail::fail(levin::detail::concat("[report] \"", shown(name_), "\" ", what));
}

void JsonCutter::add(std::string_view block) {
  const char* at = block.data();
  const char* const end = at + block.size();
  bytes_ += block.size();
  while (at != end) {
    if (taking_) {
      at = taking_scalar_ ? take_scalar(at, end) : take(at, end);
    } else {
      step(*at++);
    }
  }
}

void JsonCutter::finish() const {
  if (bytes_ == 0) fail("is empty");
  if (state_ == State::kStart) fail("has nothing in it");
  if (is_open()) return;
  if (state_ != State::kEnd) fail(levin::detail::concat("is cut off after ", events_, " events: it ends too early"));
  if (!seen_events_) fail("is not a trace: it has no \"traceEvents\"");
}

void JsonCutter::step(char c) {
  // The mark of UTF-8 may stand in front.
  if (state_ == State::kStart && (c == '\xef' || c == '\xbb' || c == '\xbf')) return;
  if (is_space(c)) return;
  switch (state_) {
    case State::kStart:
      if (c != '{' && c != '[') fail("is not JSON: a trace begins with { or [");
      is_array_ = c == '[';
      seen_events_ = is_array_;
      state_ = is_array_ ? State::kEvents : State::kKey;
      return;
    case State::kKey:
      if (c == '}') {
        state_ = State::kEnd;
      } else if (c == '"') {
        taking_ = taking_key_ = in_string_ = true;
        depth_ = 0;
        piece_.clear();
      } else {
        fail("is not a trace: a name in quotes is expected between its members");
      }
      return;
    case State::kColon:
      if (c != ':') fail(levin::detail::concat("is not a trace: no value after \"", shown(key_), "\""));
      state_ = State::kValue;
      return;
    case State::kValue:
      return before_value(c);
    case State::kAfterValue:
      if (c != ',' && c != '}') fail(levin::detail::concat("is not a trace: garbage after \"", shown(key_), "\""));
      state_ = c == ',' ? State::kKey : State::kEnd;
      return;
    case State::kEvents:
      return in_events(c);
    case State::kEnd:
      fail("has text after its end");
  }
}

void JsonCutter::before_value(char c) {
  if (key_ == "traceEvents" && c == '[') {
    if (seen_events_) fail("is not a trace: it has \"traceEvents\" twice");
    seen_events_ = true;
    needs_comma_ = false;
    state_ = State::kEvents;
    return;
  }
  if (key_ == "traceEvents") fail("is not a trace: its \"traceEvents\" are no list");
  if (c == ',' || c == '}' || c == ']') fail(levin::detail::concat("has no value for \"", shown(key_), "\""));
  begin(c, false);
}

void JsonCutter::in_events(char c) {
  if (c == ']') {
    state_ = is_array_ ? State::kEnd : State::kAfterValue;
  } else if (c == ',' && needs_comma_) {
    needs_comma_ = false;
  } else if (c == '{' && !needs_comma_) {
    begin(c, true);
  } else if (is_array_ && events_ == 0 && !needs_comma_) {
    fail("is not a trace: its list has no events");
  } else {
    fail(levin::detail::concat("is damaged after ", events_, " events: an event is expected"));
  }
}

bool JsonCutter::is_open() const {
  return is_array_ && state_ == State::kEvents && !taking_ && events_ > 0;
}

void JsonCutter::begin(char c, bool is_event) {
  piece_.assign(1, c);
  taking_ = true;
  taking_event_ = is_event;
  in_string_ = c == '"';
  depth_ = c == '{' || c == '[' ? 1 : 0;
  taking_scalar_ = depth_ == 0 && !in_string_;
}

// Copies up to the end of the piece, or of the block.
const char* JsonCutter::take(const char* at, const char* end) {
  const char* const from = at;
  bool is_whole = false;
  while (at != end && !is_whole) {
    const char c = *at++;
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        is_whole = depth_ == 0;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      is_whole = --depth_ == 0;
    }
  }
  const std::string_view part(from, static_cast<size_t>(at - from));
  if (piece_.size() + part.size() > kMost) fail("has an item of more than 16 MiB");
  piece_.append(part);
  if (is_whole) hand_over();
  return at;
}

// A number or a word, which ends before a comma, a bracket or a space.
const char* JsonCutter::take_scalar(const char* at, const char* end) {
  while (at != end && *at != ',' && *at != '}' && *at != ']' && !is_space(*at)) {
    if (piece_.size() > 1000) fail(levin::detail::concat("has a strange value for \"", shown(key_), "\""));
    piece_.push_back(*at++);
  }
  if (at != end) hand_over();
  return at;
}

void JsonCutter::hand_over() {
  taking_ = taking_scalar_ = false;
  if (taking_key_) {
    taking_key_ = false;
    piece_.pop_back();  // the quote
    key_ = piece_;
    state_ = State::kColon;
    return;
  }
  if (taking_event_) {
    taking_event_ = false;
    needs_comma_ = true;
    event_(piece_);
    ++events_;
    return;
  }
  state_ = State::kAfterValue;
  member_(key_, piece_);
}

}  // namespace levin::report
