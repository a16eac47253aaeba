#pragma once

#include <vector>

namespace levin::detail {

/// While it lives, SIGINT, SIGTERM and, with `with_requeue`, SIGUSR1 only set a flag. A loop asks `pending()` where it
/// can stop: the Trainer between two batches. A second SIGINT ends the process at once. Signals for which the program
/// has a handler of its own are left alone. The former handlers are restored at the end. One at a time in a process; a
/// second one does nothing.
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
