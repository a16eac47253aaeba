#include "levin/distributed/gloo.h"

#include <csignal>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/main.h"

namespace levin::detail {
namespace {

/// Gloo as PyTorch builds it, with the abort that it lacks.
class AbortableGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void abort() override {
    each_pair([](int, gloo::transport::tcp::Pair& pair) { pair.signalExceptionExternal("the group was ended"); });
  }

  std::vector<int> closed_peers() {
    std::vector<int> closed;
    each_pair([&](int rank, gloo::transport::tcp::Pair& pair) {
      if (!pair.isConnected()) closed.push_back(rank);
    });
    return closed;
  }

 private:
  template <class F>
  void each_pair(F&& f) {
    for (const auto& context : contexts_)
      for (int i = 0; i < getSize(); ++i)
        if (i != getRank())
          if (auto* pair = context->getPair(i).get()) f(i, *reinterpret_cast<gloo::transport::tcp::Pair*>(pair));
  }
};

/// Threads that are started while it lives do not die of SIGPIPE, nor does this one. Gloo writes to its sockets as to
/// files, and where a peer has closed one, that signal would end the process before it can say a word.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE)) return;
    const timespec at_once{};
    while (::sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace

std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  LEVIN_CHECK(error == 0, "[join] MASTER_ADDR=", host, " is not known: ", ::gai_strerror(error));
  std::string address;
  for (const int family : {AF_INET, AF_INET6}) {
    for (auto* a = found; a && address.empty(); a = a->ai_next) {
      if (a->ai_family != family) continue;
      // Connecting a datagram socket sends nothing; it only makes the kernel choose the route, and with it the address.
      const int fd = ::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      if (fd < 0) continue;
      sockaddr_storage name{};
      socklen_t size = sizeof(name);
      std::array<char, NI_MAXHOST> text{};
      if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
          ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
          ::getnameinfo(reinterpret_cast<sockaddr*>(&name), size, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) == 0)
        address = text.data();
      ::close(fd);
    }
  }
  ::freeaddrinfo(found);
  LEVIN_CHECK(!address.empty(), "[join] no interface of this machine leads to MASTER_ADDR=", host);
  return address;
}

c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                            const std::string& address, std::chrono::milliseconds timeout,
                                            int threads) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->threads = threads;
  const WithoutSigpipe in_threads_of_gloo;
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces && *interfaces) {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) {
      try {
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
      } catch (const std::exception& error) {
        throw Error(fmt::format("[join] GLOO_SOCKET_IFNAME \"{}\" cannot be used: {}", name, one_line(error)));
      }
    }
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<AbortableGloo>(store, rank, size, options);
}

std::vector<int> gloo_closed_peers(c10d::Backend& gloo) {
  return static_cast<AbortableGloo&>(gloo).closed_peers();
}

}  // namespace levin::detail
