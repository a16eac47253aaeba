#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace levin::detail {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_;
};

/// Both ends of a pipe; neither is handed down to programs that are started.
std::pair<Fd, Fd> make_pipe();

/// How a process ended.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: it ended on its own

  bool ok() const { return code == 0 && signal == 0; }
  /// What a shell would say: the exit status, or 128 + the signal.
  int shell_status() const { return signal != 0 ? 128 + signal : code; }
};

/// "SIGKILL"; "signal 35" for those without a name.
std::string signal_name(int signal);

/// The path of a program as a shell would find it. Throws an Error of one line when there is none, or none that can
/// run.
std::string find_program(const std::string& name);

struct ProcessSpec {
  std::string program;
  std::vector<std::string> arguments;    // the program's name first
  std::vector<std::string> environment;  // NAME=VALUE
  bool inherit_stdin = false;            // else /dev/null
};

/// A child in a process group of its own, with pipes for its output. The kernel kills it when the thread that started
/// it ends, however that happens. What is still running when the object goes is killed, its group with it.
class Process {
 public:
  explicit Process(const ProcessSpec& spec);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  /// Non-blocking reading ends.
  Fd& out() { return out_; }
  Fd& err() { return err_; }
  const Fd& out() const { return out_; }
  const Fd& err() const { return err_; }

  /// How it ended, or nothing while it runs. Does not wait. Its number stays taken until the object goes, so that the
  /// group can be signalled safely.
  std::optional<ExitStatus> status();
  /// To every process of the group.
  void signal_group(int signal) const;
  /// Lets what the process has left behind in its group live on.
  void release_group() { group_is_ours_ = false; }
  /// Does not wait for it at the end.
  void abandon() { abandoned_ = true; }

 private:
  pid_t pid_ = -1;
  bool group_is_ours_ = true;
  bool abandoned_ = false;
  Fd out_;
  Fd err_;
  std::optional<ExitStatus> status_;
};

}  // namespace levin::detail
