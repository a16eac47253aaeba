#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <sys/types.h>

namespace levin::testing {

/// A program under test: its output is collected, its time is limited, and a word in its environment finds every
/// process that comes from it, even those whose parent has died.
class Process {
 public:
  /// `environment` is NAME=VALUE to set, or NAME to remove.
  explicit Process(const std::vector<std::string>& command, const std::vector<std::string>& environment = {},
                   const std::string& input = "");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;

  /// Reads until the text has appeared in its output; false when it ends before, or after 600 s.
  bool wait_for(const std::string& text);
  /// Waits for its end; the status as a shell gives it. After 600 s it is killed and the status is -1.
  int wait();
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  double seconds() const { return seconds_; }

  /// The processes that come from it and live, itself excepted.
  std::vector<pid_t> descendants() const;
  /// The one of them with RANK=`rank`; 0 when there is none.
  pid_t rank(int rank) const;
  /// Whether all of them are gone within 60 seconds.
  bool all_gone() const;

 private:
  bool read_some(std::chrono::milliseconds patience);

  pid_t pid_ = -1;
  std::string token_;
  int fds_[2] = {-1, -1};
  std::string out_;
  std::string err_;
  std::chrono::steady_clock::time_point start_;
  double seconds_ = 0;
  bool waited_ = false;
  int status_ = 0;
};

/// What became of a program: its status as a shell gives it, all that it wrote to each output, and its time.
struct ProgramResult {
  int status = -1;
  std::string out;
  std::string err;
  double seconds = 0;

  std::string text() const { return out + err; }
};

/// Runs a program to its end; arguments as those of Process.
ProgramResult run_program(const std::vector<std::string>& command, const std::vector<std::string>& environment = {},
                          const std::string& input = "");

/// The command `levin run` of this build with these words.
std::vector<std::string> levin_run(const std::vector<std::string>& words);
/// A port that was free a moment ago.
int free_port();

}  // namespace levin::testing
