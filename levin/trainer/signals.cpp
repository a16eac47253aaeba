#include "levin/trainer/signals.h"

#include <atomic>
#include <csignal>

namespace levin::detail {
namespace {

std::atomic<int> caught_signal = 0;
std::atomic<bool> is_installed = false;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void levin_take_signal(int signal) {
  if (signal == SIGINT && caught_signal.exchange(SIGINT) == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
    return;
  }
  caught_signal.store(signal);
}

}  // namespace

SignalFlags::SignalFlags(bool with_requeue) {
  if (is_installed.exchange(true)) return;
  caught_signal = 0;
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
  if (taken_.empty()) is_installed = false;
}

SignalFlags::~SignalFlags() {
  if (taken_.empty()) return;
  for (const int signal : taken_) std::signal(signal, SIG_DFL);
  is_installed = false;
}

int SignalFlags::pending() {
  return caught_signal.load(std::memory_order_relaxed);
}
void SignalFlags::clear() {
  caught_signal = 0;
}

}  // namespace levin::detail
