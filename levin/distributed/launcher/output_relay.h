#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

namespace levin::detail {

enum class Stream { kOut = 0, kErr = 1 };

/// The launcher's own stdout and stderr. Writing never blocks the launcher: what the reader does not take yet is
/// queued, and ranks are not read from while much is.
class Console {
 public:
  using Clock = std::chrono::steady_clock;

  Console();

  /// Bytes as they are.
  void raw(Stream stream, std::string_view bytes);
  /// A whole line, without its end. While raw bytes have left a line unfinished it waits a little for the rest, and
  /// else starts a new one: a progress bar never ends its line.
  void line(Stream stream, std::string_view text);

  /// True while so much is queued that ranks must wait.
  bool full(Stream stream) const { return of(stream).queue.size() + of(stream).held.size() > kQueueLimit; }
  /// True when the reader has gone away.
  bool closed(Stream stream) const { return of(stream).closed; }
  /// How often something was given to a stream: tells whether anything has come since.
  uint64_t writes(Stream stream) const { return of(stream).writes; }
  /// Adds what to wait for to a poll set.
  void add_to(std::vector<pollfd>& polls) const;
  /// When write_ready() must be called again although nothing has become ready.
  Clock::time_point next_turn() const;
  /// Writes what can be written without waiting.
  void write_ready();
  /// Writes everything, waiting at most so long. Returns false when `wake` has become readable before.
  bool flush(std::chrono::milliseconds patience, int wake);

 private:
  static constexpr size_t kQueueLimit = 1 << 20;
  struct Sink {
    int fd = -1;
    std::string queue;
    bool closed = false;
    uint64_t writes = 0;
    bool mid_line = false;
    std::string held;  // lines that wait for the end of the unfinished one
    Clock::time_point held_until;
  };
  Sink& of(Stream stream) { return sinks_[static_cast<size_t>(stream)]; }
  const Sink& of(Stream stream) const { return sinks_[static_cast<size_t>(stream)]; }
  bool mid_line(const Sink& sink) const;
  void set_mid_line(Sink& sink, bool mid_line);
  void release_held(Sink& sink);

  std::array<Sink, 2> sinks_;
  bool one_place_ = false;  // both go to the same terminal or file
};

/// What happens to one output of one rank.
struct RelayRule {
  bool to_console = true;
  /// Empty: as it is, byte by byte. Else whole lines, each with this in front.
  std::string prefix;
  /// Path of a file that gets a copy; empty for none.
  std::string file;
};

/// Passes one output of one rank on, and remembers its last lines. On stderr a line "error: ..." and what follows is
/// held until it is released: other ranks may be about to say the same, which is shown once (error_lines.h).
class OutputRelay {
 public:
  using Clock = Console::Clock;

  OutputRelay(Console& console, Stream stream, RelayRule rule);

  void feed(std::string_view bytes);
  /// The rank has closed its end: an unfinished last line is shown too.
  void finish();

  Stream stream() const { return stream_; }
  /// Nobody wants the bytes: the rank may be told so by a closed pipe.
  bool pointless() const { return rule_.to_console && !file_ && console_.closed(stream_); }
  bool must_wait() const { return rule_.to_console && console_.full(stream_); }
  std::vector<std::string> last_lines() const;

  /// When the held line came; nothing while none is.
  std::optional<Clock::time_point> held_since() const { return held_since_; }
  /// The held line; empty while it is unfinished.
  std::string held_error() const;
  /// Passes on what is held; its first line only where nobody has shown it.
  void release(bool error_is_shown);

 private:
  void show(std::string_view bytes);
  void show_line(std::string_view line);
  void hold(std::string_view bytes);
  void end_line();

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Console& console_;
  Stream stream_;
  RelayRule rule_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string line_;       // the unfinished one
  bool carriage_ = false;  // a '\r' came last: what follows overwrites the line, unless it is '\n'
  std::deque<std::string> last_;
  std::string held_;
  std::optional<Clock::time_point> held_since_;
  bool finished_ = false;
};

}  // namespace levin::detail
