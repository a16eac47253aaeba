#pragma once

#include <vector>

namespace levin::detail {

/// While it lives, SIGINT, SIGTERM and, on request, SIGUSR1 only set a flag: the loops look at it between two batches.
/// A second SIGINT ends the process at once. Signals for which the program has a handler of its own are left alone. The
/// dispositions that were there before come back at the end. One at a time in a process; a second one does nothing.
class SignalFlags {
 public:
  explicit SignalFlags(bool with_requeue);
  ~SignalFlags();
  SignalFlags(const SignalFlags&) = delete;
  SignalFlags& operator=(const SignalFlags&) = delete;

  /// The signal that came, or 0.
  static int pending();
  static void clear();

 private:
  std::vector<int> taken_;
};

}  // namespace levin::detail
