#include "levin/trainer/run/signals.h"

#include <atomic>
#include <csignal>

namespace levin::detail {
namespace {

std::atomic<int> flag = 0;
std::atomic<bool> in_use = false;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void levin_take_signal(int signal) {
  if (signal == SIGINT && flag.exchange(SIGINT) == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
    return;
  }
  flag.store(signal);
}

}  // namespace

SignalFlags::SignalFlags(bool with_requeue) {
  if (in_use.exchange(true)) return;
  flag = 0;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    if (signal == SIGUSR1 && !with_requeue) continue;
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = levin_take_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (::sigaction(signal, &action, nullptr) == 0) taken_.push_back(signal);
  }
  if (taken_.empty()) in_use = false;
}

SignalFlags::~SignalFlags() {
  if (taken_.empty()) return;
  for (const int signal : taken_) std::signal(signal, SIG_DFL);
  in_use = false;
}

int SignalFlags::pending() {
  return flag.load(std::memory_order_relaxed);
}
void SignalFlags::clear() {
  flag = 0;
}

}  // namespace levin::detail
