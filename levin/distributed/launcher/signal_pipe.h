#pragma once

#include <vector>

#include "levin/distributed/process.h"

namespace levin::detail {

/// While it lives, the signals that end a run (SIGTERM, SIGINT, SIGHUP, SIGQUIT) and SIGCHLD arrive as bytes of a pipe,
/// and SIGPIPE is ignored. The handlers that were there before come back at the end. One at a time in a process.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// Readable when there is a signal.
  int fd() const { return read_.get(); }
  /// The signals that came since the last call, in order.
  std::vector<int> take();

  /// For a child between fork and exec: what was ignored before stays so, all else is the default.
  static void restore_in_child();

 private:
  Fd read_;
  Fd write_;
};

}  // namespace levin::detail
