#include "levin/distributed/store.h"

#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct Address {
  int family = 0;
  std::string bytes;  // a sockaddr

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(bytes.data()); }
  socklen_t size() const { return static_cast<socklen_t>(bytes.size()); }
  std::string numeric() const {
    std::array<char, NI_MAXHOST> host{};
    ::getnameinfo(get(), size(), host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
    return host.data();
  }
};

/// What a name stands for; empty, with the reason, when it is not known.
std::vector<Address> resolve(const std::string& host, int port, std::string& reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::vector<Address> addresses;
  if (error != 0) {
    reason = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
    return addresses;
  }
  for (auto* a = found; a; a = a->ai_next)
    addresses.push_back({a->ai_family, std::string(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen)});
  ::freeaddrinfo(found);
  // "localhost" often stands for both; most tools mean the older one.
  std::stable_partition(addresses.begin(), addresses.end(), [](const auto& a) { return a.family == AF_INET; });
  return addresses;
}

int bound_port(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
  std::array<char, NI_MAXSERV> service{};
  ::getnameinfo(reinterpret_cast<sockaddr*>(&name), size, nullptr, 0, service.data(), service.size(), NI_NUMERICSERV);
  return std::atoi(service.data());
}

/// One attempt to reach an address; 0 or the errno of the failure.
int try_connect(const Address& address, milliseconds patience) {
  const Socket socket(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return errno;
  if (::connect(socket.get(), address.get(), address.size()) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{socket.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// Waits until something answers, and returns its numeric address. TCPStore's own wait overshoots its timeout and warns
/// on stderr for every attempt.
std::string wait_for_server(const std::string& host, int port, milliseconds timeout) {
  const auto start = Clock::now();
  const auto deadline = start + timeout;
  std::string reason = "no answer";
  for (bool said = false;;) {
    for (const auto& address : resolve(host, port, reason)) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      const int error = try_connect(address, std::clamp(left, milliseconds(1), milliseconds(2000)));
      if (error == 0) return address.numeric();
      reason = std::strerror(error);
    }
    const auto now = Clock::now();
    LEVIN_CHECK(now < deadline, "[join] the store at MASTER_ADDR=", host, " MASTER_PORT=", port,
                " did not answer within ", std::chrono::duration<double>(timeout).count(), " s: ", reason);
    if (!said && now - start > std::chrono::seconds(10)) {
      log_info(fmt::format("waiting for the store at MASTER_ADDR={} MASTER_PORT={} ({})", host, port, reason));
      said = true;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    throw Error(fmt::format("[join] the store at {} port {} failed: {}", host, options.port, one_line(error)));
  }
}

}  // namespace

HostedStore host_store(const std::string& address, int port, milliseconds timeout) {
  LEVIN_CHECK(port >= 0 && port <= 65535, "[store] port ", port, " is not one: 0 (any free port) to 65535");
  std::string reason;
  const auto candidates = resolve(address, port, reason);
  LEVIN_CHECK(!candidates.empty(), "[store] address \"", address, "\" is not known: ", reason);

  int error = 0;
  for (const auto& candidate : candidates) {
    Socket socket(::socket(candidate.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    // Connections of an earlier run that linger in TIME_WAIT must not hold the port; a live listener still does.
    if (socket.get() >= 0) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    // With SO_REUSEADDR two sockets may bind and only listen() tells that the port is taken.
    if (socket.get() < 0 || ::bind(socket.get(), candidate.get(), candidate.size()) != 0 ||
        ::listen(socket.get(), 128) != 0) {
      error = errno;
      continue;
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(bound_port(socket.get()));
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = timeout;
    options.masterListenFd = socket.release();
    return {open_store(candidate.numeric(), options), options.port};
  }
  LEVIN_CHECK(error != EADDRINUSE, "[store] port ", port, " of address ", address,
              " is in use; choose another MASTER_PORT, or 0 for any free one");
  LEVIN_CHECK(
      error != EADDRNOTAVAIL, "[store] address ", address,
      " is not one of this machine, so the store cannot be served there; MASTER_ADDR must be an address of rank 0");
  throw Error(fmt::format("[store] port {} of address {} cannot be opened: {}", port, address, std::strerror(error)));
}

c10::intrusive_ptr<c10d::Store> connect_store(const Placement& placement, milliseconds timeout) {
  LEVIN_CHECK(placement.master_port > 0 && placement.master_port <= 65535, "[join] MASTER_PORT=", placement.master_port,
              " is not a port: 1 to 65535");
  LEVIN_CHECK(!placement.master_addr.empty(), "[join] MASTER_ADDR is empty; it must name the machine of rank 0");
  const auto deadline = Clock::now() + timeout;
  c10::intrusive_ptr<c10d::Store> store;
  if (placement.global_rank == 0 && !placement.store_is_hosted) {
    std::string reason;
    const auto own = resolve(placement.master_addr, placement.master_port, reason);
    // Many distributions map a machine's own name to 127.0.1.1, and the other machines then wait in vain.
    if (placement.local_world_size < placement.world_size && !own.empty() && own[0].numeric().starts_with("127."))
      log_warning(fmt::format("MASTER_ADDR={} means {} here, which ranks on other machines cannot reach",
                              placement.master_addr, own[0].numeric()));
    store = host_store(placement.master_addr, placement.master_port, timeout).store;
  } else {
    const auto address = wait_for_server(placement.master_addr, placement.master_port, timeout);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(placement.master_port);
    options.waitWorkers = false;
    options.timeout = std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1000));
    store = open_store(address, options);
  }
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("attempt_{}", placement.attempt), store);
}

}  // namespace levin
