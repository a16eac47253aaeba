#include "levin/distributed/gloo.h"

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/distributed/trace.h"
#include "levin/distributed/traffic.h"

namespace levin::detail {
namespace {

/// Work without a future, which is over when somebody has waited for it.
class EndsWhenWaited final : public c10d::Work {
 public:
  EndsWhenWaited(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<GroupTrace> trace, int64_t index)
      : inner_(std::move(inner)), trace_(std::move(trace)), index_(index) {}
  ~EndsWhenWaited() override { end(); }
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    struct Ends {
      EndsWhenWaited* work;
      ~Ends() { work->end(); }
    } ends{this};
    return inner_->wait(timeout);
  }
  void abort() override { inner_->abort(); }

 private:
  void end() {
    if (const auto trace = std::exchange(trace_, nullptr)) trace->end(index_);
  }
  c10::intrusive_ptr<c10d::Work> inner_;
  std::shared_ptr<GroupTrace> trace_;
  int64_t index_;
};

/// Gloo as PyTorch builds it, with the abort that it lacks, and a record of what is under way.
class AbortableGloo : public c10d::ProcessGroupGloo {
 public:
  using WorkRef = c10::intrusive_ptr<c10d::Work>;
  AbortableGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options,
                std::shared_ptr<GroupTrace> trace, std::shared_ptr<TrafficCounter> traffic)
      : ProcessGroupGloo(store, rank, size, std::move(options)),
        trace_(std::move(trace)),
        traffic_(std::move(traffic)) {}

  WorkRef broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return traced("broadcast", tensors, [&] { return ProcessGroupGloo::broadcast(tensors, options); });
  }
  WorkRef allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return traced("all_reduce", tensors, [&] { return ProcessGroupGloo::allreduce(tensors, options); });
  }
  WorkRef allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return traced("all_reduce", tensors, [&] { return ProcessGroupGloo::allreduce_sparse(tensors, options); });
  }
  WorkRef allreduce_coalesced(std::vector<at::Tensor>& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return traced("all_reduce", tensors, [&] { return ProcessGroupGloo::allreduce_coalesced(tensors, options); });
  }
  WorkRef reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override {
    return traced("reduce", tensors, [&] { return ProcessGroupGloo::reduce(tensors, options); });
  }
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return traced("reduce_scatter", {&input, 1},
                  [&] { return ProcessGroupGloo::_reduce_scatter_base(output, input, options); });
  }
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return traced("all_gather", {&input, 1}, [&] { return ProcessGroupGloo::_allgather_base(output, input, options); });
  }
  WorkRef allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override {
    return traced("all_gather", inputs, [&] { return ProcessGroupGloo::allgather(outputs, inputs, options); });
  }
  WorkRef allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                              const c10d::AllgatherOptions& options) override {
    return traced("all_gather", inputs,
                  [&] { return ProcessGroupGloo::allgather_coalesced(outputs, inputs, options); });
  }
  WorkRef gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return traced("gather", inputs, [&] { return ProcessGroupGloo::gather(outputs, inputs, options); });
  }
  WorkRef scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return traced("scatter", outputs, [&] { return ProcessGroupGloo::scatter(outputs, inputs, options); });
  }
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_counts,
                        std::vector<int64_t>& input_counts, const c10d::AllToAllOptions& options) override {
    // What each rank sends may differ.
    if (!inside_) count("all_to_all", static_cast<int64_t>(input.nbytes()), sent_to_others(input, input_counts));
    return traced("all_to_all", {},
                  [&] { return ProcessGroupGloo::alltoall_base(output, input, output_counts, input_counts, options); });
  }
  WorkRef barrier(const c10d::BarrierOptions& options) override {
    return traced("barrier", {}, [&] { return ProcessGroupGloo::barrier(options); });
  }

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
  WorkRef traced(std::string_view kind, std::span<const at::Tensor> tensors, F&& start) {
    // Some operations are made of others.
    if (!trace_ || inside_) return start();
    count(kind, tensors);
    std::lock_guard lock(starting_);
    auto what = tensors.empty() ? std::string(kind) : fmt::format("{} of {} bytes", kind, bytes_of(tensors));
    // Messages find their operation by its tag. One that other ranks call something else gets another tag, so that
    // two buffers of different sizes never meet, which would end the process.
    uint32_t hash = 2166136261u;
    for (const unsigned char c : what) hash = (hash ^ c) * 16777619u;
    const auto index = trace_->begin(GroupTrace::labelled(std::move(what)));
    collectiveCounter_ = (((hash >> 16) ^ hash) << 16) | (static_cast<uint32_t>(index * 4) & 0xffffu);
    inside_ = true;
    WorkRef work;
    try {
      work = start();
    } catch (...) {
      inside_ = false;
      trace_->end(index);
      throw;
    }
    inside_ = false;
    if (!work) {
      trace_->end(index);
      return work;
    }
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work->getFuture();
    } catch (const c10::Error&) {  // a reduce_scatter has none: it is done when it was waited for
      return c10::make_intrusive<EndsWhenWaited>(std::move(work), trace_, index);
    }
    future->addCallback([trace = trace_, index](c10::ivalue::Future&) { trace->end(index); }, /*uses_future=*/false);
    return work;
  }

  static int64_t bytes_of(std::span<const at::Tensor> tensors) {
    int64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    return bytes;
  }

  void count(std::string_view kind, int64_t bytes, int64_t sent) {
    if (traffic_) traffic_->add(kind, bytes, sent);
  }
  void count(std::string_view kind, std::span<const at::Tensor> tensors) {
    const auto bytes = bytes_of(tensors);
    // Its reduce_scatter reduces everything on every rank, and keeps a part.
    if (bytes > 0) count(kind, bytes, sent_in_ring(kind == "reduce_scatter" ? "all_reduce" : kind, bytes, getSize()));
  }
  /// Rows of an all_to_all that leave this rank; no counts: as many to each.
  int64_t sent_to_others(const at::Tensor& input, const std::vector<int64_t>& counts) const {
    const auto bytes = static_cast<int64_t>(input.nbytes());
    if (counts.empty() || input.numel() == 0) return sent_in_ring("all_to_all", bytes, getSize());
    return bytes - counts[static_cast<size_t>(getRank())] * (bytes / input.size(0));
  }

  template <class F>
  void each_pair(F&& f) {
    for (const auto& context : contexts_)
      for (int i = 0; i < getSize(); ++i)
        if (i != getRank())
          if (auto* pair = context->getPair(i).get()) f(i, *reinterpret_cast<gloo::transport::tcp::Pair*>(pair));
  }

  const std::shared_ptr<GroupTrace> trace_;
  const std::shared_ptr<TrafficCounter> traffic_;
  std::mutex starting_;
  static thread_local bool inside_;
};

thread_local bool AbortableGloo::inside_ = false;

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
                                            const std::string& address, std::chrono::milliseconds timeout, int threads,
                                            std::shared_ptr<GroupTrace> trace,
                                            std::shared_ptr<TrafficCounter> traffic) {
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
  return c10::make_intrusive<AbortableGloo>(store, rank, size, options, std::move(trace), std::move(traffic));
}

std::vector<int> gloo_closed_peers(c10d::Backend& gloo) {
  return static_cast<AbortableGloo&>(gloo).closed_peers();
}

}  // namespace levin::detail
