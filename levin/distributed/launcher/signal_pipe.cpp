#include "levin/distributed/launcher/signal_pipe.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <unistd.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGCHLD, SIGPIPE};

// A handler can reach nothing but globals.
std::atomic<int> handler_fd{-1};
std::array<struct sigaction, kSignals.size()> before;

void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  const auto written = ::write(handler_fd.load(), &byte, 1);
  (void)written;
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe() {
  auto [read_end, write_end] = make_pipe();
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(write_end.get(), F_SETFL, O_NONBLOCK);
  int none = -1;
  LEVIN_CHECK(handler_fd.compare_exchange_strong(none, write_end.get()),
              "[launch] a launch is under way in this process");
  read_ = std::move(read_end);
  write_ = std::move(write_end);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before[i]);
    const bool ignored = before[i].sa_handler == SIG_IGN;
    // nohup and background shells ignore some; that is meant to last.
    if (ignored && kSignals[i] != SIGCHLD) continue;
    struct sigaction action {};
    action.sa_handler = kSignals[i] == SIGPIPE ? SIG_IGN : on_signal;
    sigfillset(&action.sa_mask);
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalPipe::~SignalPipe() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
  handler_fd = -1;
}

std::vector<int> SignalPipe::take() {
  std::array<unsigned char, 256> bytes;
  std::vector<int> signals;
  for (ssize_t got; (got = ::read(read_.get(), bytes.data(), bytes.size())) > 0;)
    signals.insert(signals.end(), bytes.begin(), bytes.begin() + got);
  return signals;
}

void SignalPipe::restore_in_child() {
  if (handler_fd.load() < 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = before[i].sa_handler == SIG_IGN && kSignals[i] != SIGCHLD ? SIG_IGN : SIG_DFL;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

}  // namespace levin::detail
