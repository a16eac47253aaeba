#include "levin/distributed/launcher/output_relay.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/distributed/rank_failure.h"

namespace levin::detail {
namespace {

constexpr size_t kRemembered = 10;
constexpr size_t kLongestLine = 1 << 16;
// A pipe that poll calls writable takes this much without blocking.
constexpr size_t kChunk = 4096;
// A line that is written in one go is whole after this time; one that is not is drawn over itself.
constexpr auto kHold = std::chrono::milliseconds(200);

}  // namespace

Console::Console() {
  sinks_[0].fd = STDOUT_FILENO;
  sinks_[1].fd = STDERR_FILENO;
  struct stat out {
  }, err{};
  one_place_ = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
               out.st_ino == err.st_ino;
}

bool Console::mid_line(const Sink& sink) const {
  return one_place_ ? sinks_[0].mid_line || sinks_[1].mid_line : sink.mid_line;
}

void Console::set_mid_line(Sink& sink, bool mid_line) {
  if (one_place_)
    for (auto& other : sinks_) other.mid_line = false;
  sink.mid_line = mid_line;
}

void Console::release_held(Sink& sink) {
  if (sink.held.empty()) return;
  if (mid_line(sink)) sink.queue.push_back('\n');
  set_mid_line(sink, false);
  sink.queue.append(sink.held);
  sink.held.clear();
}

void Console::raw(Stream stream, std::string_view bytes) {
  auto& sink = of(stream);
  if (bytes.empty() || sink.closed) return;
  ++sink.writes;
  if (const auto end = bytes.find('\n'); end != std::string_view::npos) {
    sink.queue.append(bytes.substr(0, end + 1));
    set_mid_line(sink, false);
    for (auto& other : sinks_)
      if (!mid_line(other)) release_held(other);
    bytes.remove_prefix(end + 1);
    if (bytes.empty()) return;
  }
  sink.queue.append(bytes);
  // Without a line's end the other stream's unfinished line, if it is in the same place, stays unfinished too.
  if (bytes.find('\n') != std::string_view::npos) {
    set_mid_line(sink, bytes.back() != '\n');
  } else {
    sink.mid_line = true;
  }
}

void Console::line(Stream stream, std::string_view text) {
  auto& sink = of(stream);
  if (sink.closed) return;
  ++sink.writes;
  if (mid_line(sink) && sink.held.empty()) sink.held_until = Clock::now() + kHold;
  auto& target = mid_line(sink) ? sink.held : sink.queue;
  target.append(text).push_back('\n');
}

Console::Clock::time_point Console::next_turn() const {
  auto turn = Clock::time_point::max();
  for (const auto& sink : sinks_)
    if (!sink.held.empty()) turn = std::min(turn, sink.held_until);
  return turn;
}

void Console::add_to(std::vector<pollfd>& polls) const {
  for (const auto& sink : sinks_)
    if (!sink.queue.empty()) polls.push_back({sink.fd, POLLOUT, 0});
}

void Console::write_ready() {
  for (auto& sink : sinks_) {
    if (!sink.held.empty() && Clock::now() >= sink.held_until) release_held(sink);
    size_t done = 0;
    while (done < sink.queue.size()) {
      pollfd ready{sink.fd, POLLOUT, 0};
      if (::poll(&ready, 1, 0) <= 0) break;
      const auto wrote = ::write(sink.fd, sink.queue.data() + done, std::min(kChunk, sink.queue.size() - done));
      if (wrote > 0) {
        done += static_cast<size_t>(wrote);
      } else if (errno != EINTR && errno != EAGAIN) {
        sink.closed = true;
        sink.held.clear();
        done = sink.queue.size();
      } else {
        break;
      }
    }
    sink.queue.erase(0, done);
  }
}

bool Console::flush(std::chrono::milliseconds patience, int wake) {
  for (auto& sink : sinks_) release_held(sink);
  const auto deadline = Clock::now() + patience;
  for (write_ready(); Clock::now() < deadline; write_ready()) {
    std::vector<pollfd> polls{{wake, POLLIN, 0}};
    add_to(polls);
    if (polls.size() == 1) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (polls[0].revents != 0) return false;
  }
  return true;
}

OutputRelay::OutputRelay(Console& console, Stream stream, RelayRule rule)
    : console_(console), stream_(stream), rule_(std::move(rule)) {
  if (rule_.file.empty()) return;
  file_.reset(std::fopen(rule_.file.c_str(), "we"));
  LEVIN_CHECK(file_, "[launch] log file \"", rule_.file, "\" cannot be written: ", std::strerror(errno));
}

void OutputRelay::feed(std::string_view bytes) {
  if (file_ &&
      (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size() || std::fflush(file_.get()) != 0)) {
    console_.line(Stream::kErr,
                  fmt::format("levin: warning: log file {} ends here: {}", rule_.file, std::strerror(errno)));
    file_.reset();
  }
  if (rule_.to_console && rule_.prefix.empty()) show(bytes);
  for (const char c : bytes) {
    if (c == '\n') {
      carriage_ = false;
      end_line();
    } else if (c == '\r') {
      carriage_ = true;
    } else {
      // As on a terminal: of a progress bar drawn over itself the last state counts.
      if (carriage_) line_.clear();
      carriage_ = false;
      line_.push_back(c);
      if (line_.size() >= kLongestLine) end_line();
    }
  }
}

void OutputRelay::show(std::string_view bytes) {
  if (held_since_) return hold(bytes);
  if (stream_ == Stream::kErr) {
    // An error is written in one piece: it is not looked for across the ends of pieces.
    const bool fresh = line_.empty() || carriage_;
    for (auto at = bytes.find(kErrorMark); at != std::string_view::npos; at = bytes.find(kErrorMark, at + 1)) {
      if (at == 0 ? !fresh : bytes[at - 1] != '\n' && bytes[at - 1] != '\r') continue;
      console_.raw(stream_, bytes.substr(0, at));
      return hold(bytes.substr(at));
    }
  }
  console_.raw(stream_, bytes);
}

void OutputRelay::show_line(std::string_view line) {
  if (held_since_ || (stream_ == Stream::kErr && line.starts_with(kErrorMark)))
    hold(std::string(line) + "\n");
  else
    console_.line(stream_, rule_.prefix + std::string(line));
}

void OutputRelay::hold(std::string_view bytes) {
  if (!held_since_) held_since_ = Clock::now();
  held_ += bytes;
  // A rank that prints so much has not failed.
  if (held_.size() > kLongestLine) release(false);
}

std::string OutputRelay::held_error() const {
  const auto end = held_.find('\n');
  if (end == std::string::npos && !finished_) return {};
  auto line = held_.substr(0, end);
  while (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

void OutputRelay::release(bool error_is_shown) {
  if (!held_since_) return;
  held_since_.reset();
  std::string_view rest = held_;
  if (error_is_shown) rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
  if (rule_.prefix.empty()) {
    console_.raw(stream_, rest);
  } else {
    for (size_t end = 0; !rest.empty(); rest.remove_prefix(end + 1)) {
      end = rest.find('\n');
      console_.line(stream_, rule_.prefix + std::string(rest.substr(0, end)));
    }
  }
  held_.clear();
}

void OutputRelay::finish() {
  if (!line_.empty()) end_line();
  finished_ = true;
}

void OutputRelay::end_line() {
  if (rule_.to_console && !rule_.prefix.empty()) show_line(line_);
  if (last_.size() == kRemembered) last_.pop_front();
  last_.push_back(std::move(line_));
  line_.clear();
}

std::vector<std::string> OutputRelay::last_lines() const {
  std::vector<std::string> lines(last_.begin(), last_.end());
  if (!line_.empty()) lines.push_back(line_);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace levin::detail
