#include "levin/distributed/output_relay.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr size_t kRemembered = 10;
constexpr size_t kLongestLine = 1 << 16;
// A pipe that poll calls writable takes this much without blocking.
constexpr size_t kChunk = 4096;

}  // namespace

Console::Console() {
  sinks_[0].fd = STDOUT_FILENO;
  sinks_[1].fd = STDERR_FILENO;
  struct stat out {
  }, err{};
  one_place_ = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
               out.st_ino == err.st_ino;
}

bool Console::mid_line(Stream stream) const {
  return one_place_ ? sinks_[0].mid_line || sinks_[1].mid_line : of(stream).mid_line;
}

void Console::append(Stream stream, std::string_view bytes) {
  auto& sink = of(stream);
  if (!sink.closed) sink.queue.append(bytes);
}

void Console::raw(Stream stream, std::string_view bytes) {
  if (bytes.empty()) return;
  append(stream, bytes);
  of(stream).mid_line = bytes.back() != '\n';
  if (one_place_ && bytes.find('\n') != std::string_view::npos)
    for (auto& sink : sinks_) sink.mid_line = bytes.back() != '\n' && &sink == &of(stream);
}

void Console::line(Stream stream, std::string_view text) {
  if (mid_line(stream)) append(stream, "\n");
  append(stream, text);
  append(stream, "\n");
  of(stream).mid_line = false;
  if (one_place_)
    for (auto& sink : sinks_) sink.mid_line = false;
}

void Console::add_to(std::vector<pollfd>& polls) const {
  for (const auto& sink : sinks_)
    if (!sink.queue.empty()) polls.push_back({sink.fd, POLLOUT, 0});
}

void Console::write_ready() {
  for (auto& sink : sinks_) {
    size_t done = 0;
    while (done < sink.queue.size()) {
      pollfd ready{sink.fd, POLLOUT, 0};
      if (::poll(&ready, 1, 0) <= 0) break;
      const auto wrote = ::write(sink.fd, sink.queue.data() + done, std::min(kChunk, sink.queue.size() - done));
      if (wrote > 0) {
        done += static_cast<size_t>(wrote);
      } else if (errno != EINTR && errno != EAGAIN) {
        sink.closed = true;
        done = sink.queue.size();
      } else {
        break;
      }
    }
    sink.queue.erase(0, done);
  }
}

void Console::flush(std::chrono::milliseconds patience, int wake) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (write_ready(); std::chrono::steady_clock::now() < deadline; write_ready()) {
    std::vector<pollfd> polls{{wake, POLLIN, 0}};
    add_to(polls);
    if (polls.size() == 1) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (polls[0].revents != 0) return;
  }
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
  if (rule_.to_console && rule_.prefix.empty()) console_.raw(stream_, bytes);
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

void OutputRelay::finish() {
  if (!line_.empty()) end_line();
}

void OutputRelay::end_line() {
  if (rule_.to_console && !rule_.prefix.empty()) console_.line(stream_, rule_.prefix + line_);
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
