#include "levin/distributed/launcher/node_link.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/distributed/store.h"

namespace levin::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = 200ms;
constexpr auto kBeat = 1s;
// A node that is silent so long is lost. A launcher that dies takes its ranks with it and their peers notice at once;
// this is for machines that vanish.
constexpr auto kSilence = 20s;

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

struct NodeLink::Shared {
  explicit Shared(NodeLinkSpec asked) : spec(std::move(asked)) {
    std::tie(wake_read, wake_write) = make_pipe();
    ::fcntl(wake_read.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(wake_write.get(), F_SETFL, O_NONBLOCK);
  }

  using Command = std::function<void(Shared&)>;

  // Shared with the launcher's thread, under the mutex.
  std::mutex mutex;
  std::condition_variable changed;
  NodeNews news;
  std::vector<Command> commands;
  bool stop = false;
  bool finished = false;
  Clock::time_point last_answer = Clock::now();
  Fd wake_read;
  Fd wake_write;

  // The link's own thread only.
  NodeLinkSpec spec;
  c10::intrusive_ptr<c10d::Store> store;
  int attempt = 0;
  int64_t failures_seen = 0;
  bool awaits_done = false;
  bool awaits_ended = false;
  bool awaits_farewell = false;
  std::string waiting;
  std::vector<std::string> hosts;
  Clock::time_point last_beat{};
  struct Pulse {
    std::string beat;
    Clock::time_point since = Clock::now();
    bool reported = false;
  };
  std::vector<Pulse> pulses;

  static std::string key(const std::string& name) { return "levin_nodes/" + name; }
  std::string attempt_key(const std::string& name) const { return key(fmt::format("{}/{}", attempt, name)); }
  void put(const std::string& name, const std::string& value) { store->set(name, bytes(value)); }
  std::string take(const std::string& name) {
    const auto value = store->get(name);
    return {value.begin(), value.end()};
  }

  void tell(const std::function<void(NodeNews&)>& change) {
    std::lock_guard lock(mutex);
    change(news);
    changed.notify_all();
    const auto written = ::write(wake_write.get(), "!", 1);
    (void)written;
  }

  /// News of an attempt that the launcher has given up meanwhile is dropped.
  void tell_of_attempt(const std::function<void(NodeNews&)>& change) {
    tell([&](NodeNews& n) {
      if (n.attempt == attempt) change(n);
    });
  }

  void tell_waiting(const std::string& what) {
    if (std::exchange(waiting, what) != what) tell([&](NodeNews& n) { n.waiting_for = what; });
  }

  bool stopping() {
    std::lock_guard lock(mutex);
    return stop;
  }

  void run() {
    try {
      join();
      while (!stopping()) {
        obey();
        look();
        std::unique_lock lock(mutex);
        last_answer = Clock::now();
        changed.wait_for(lock, kTick, [&] { return stop || !commands.empty(); });
      }
      obey();
    } catch (const Error& error) {
      tell([&](NodeNews& n) { n.error = error.what(); });
    } catch (const std::exception&) {
      tell([&](NodeNews& n) {
        n.error = fmt::format("[launch] the launcher of node 0 at {} port {} does not answer any more", spec.address,
                              spec.port);
      });
    }
    store.reset();
    std::lock_guard lock(mutex);
    finished = true;
    changed.notify_all();
  }

  void obey() {
    std::vector<Command> now;
    {
      std::lock_guard lock(mutex);
      now.swap(commands);
    }
    for (const auto& command : now) command(*this);
  }

  void join() {
    const auto deadline = Clock::now() + spec.join_timeout;
    connect(deadline);
    if (spec.node_rank < 0) spec.node_rank = static_cast<int>(store->add(key("next_node"), 1));
    LEVIN_CHECK(spec.node_rank < spec.num_nodes, "[launch] the run at ", spec.address, " port ", spec.port,
                " already has its ", spec.num_nodes, " nodes");
    LEVIN_CHECK(store->add(key(fmt::format("claimed/{}", spec.node_rank)), 1) == 1, "[launch] --node-rank ",
                spec.node_rank, " was given to two nodes of the run at ", spec.address, " port ", spec.port);
    const nlohmann::json mine{
        {"host", spec.host}, {"nproc", spec.nproc}, {"num_nodes", spec.num_nodes}, {"max_restarts", spec.max_restarts}};
    put(key(fmt::format("node/{}", spec.node_rank)), mine.dump());
    NodeNews all;
    all.node_rank = spec.node_rank;
    for (int node = 0; node < spec.num_nodes; ++node) {
      const auto name = key(fmt::format("node/{}", node));
      while (!store->check({name})) {
        if (stopping()) return;
        LEVIN_CHECK(Clock::now() < deadline, "[launch] node ", node, " of ", spec.num_nodes,
                    " did not join the run at ", spec.address, " port ", spec.port, " within ", spec.join_timeout / 1s,
                    " s");
        tell_waiting(fmt::format("node {} of {} to join", node, spec.num_nodes));
        std::this_thread::sleep_for(50ms);
      }
      const auto info = nlohmann::json::parse(take(name));
      LEVIN_CHECK(info.at("num_nodes") == spec.num_nodes, "[launch] node ", node, " was started with --nnodes ",
                  info.at("num_nodes").get<int>(), ", this one with --nnodes ", spec.num_nodes);
      all.nproc.push_back(info.at("nproc"));
      if (node == 0) all.max_restarts = info.at("max_restarts");
      hosts.push_back(info.at("host"));
    }
    pulses.resize(static_cast<size_t>(spec.num_nodes));
    all.joined = true;
    tell([&](NodeNews& n) { n = all; });
  }

  void connect(Clock::time_point deadline) {
    Placement client;
    client.master_addr = spec.address;
    client.master_port = spec.port;
    client.store_is_hosted = true;
    while (!store) {
      try {
        store = connect_store(client, 1s);
      } catch (const Error& error) {
        if (Clock::now() >= deadline || stopping()) throw;
        tell_waiting(fmt::format("node 0 to answer at {} port {}", spec.address, spec.port));
      }
    }
    store->setTimeout(kSilence);
  }

  void look() {
    const auto count = store->add(attempt_key("failures"), 0);
    while (failures_seen < count) {
      ++failures_seen;
      const auto failure = RankFailure::from_json(take(attempt_key(fmt::format("failure/{}", failures_seen))));
      tell_of_attempt([&](NodeNews& n) { n.failures.push_back(failure); });
    }
    if (awaits_done && store->check({attempt_key("all_done")})) {
      awaits_done = false;
      tell_of_attempt([](NodeNews& n) { n.all_done = true; });
    }
    if (awaits_ended && store->add(attempt_key("ended"), 0) == spec.num_nodes) {
      awaits_ended = false;
      tell_of_attempt([](NodeNews& n) { n.all_ended = true; });
    }
    if (awaits_farewell) {
      const auto silent = nodes_without("farewell");
      awaits_farewell = !silent.empty();
      tell([&](NodeNews& n) {
        n.silent = silent;
        n.all_left = silent.empty();
      });
    }
    if (Clock::now() - last_beat < kBeat) return;
    last_beat = Clock::now();
    put(key(fmt::format("beat/{}", spec.node_rank)), std::to_string(last_beat.time_since_epoch().count()));
    if (spec.node_rank == 0) feel_pulses();
  }

  std::vector<std::string> nodes_without(const std::string& name) {
    std::vector<std::string> without;
    if (spec.node_rank != 0) return without;
    for (size_t node = 0; node < hosts.size(); ++node)
      if (!store->check({key(fmt::format("{}/{}", name, node))}))
        without.push_back(fmt::format("{} ({})", node, hosts[node]));
    return without;
  }

  void feel_pulses() {
    for (int node = 1; node < spec.num_nodes; ++node) {
      auto& pulse = pulses[static_cast<size_t>(node)];
      const auto name = key(fmt::format("beat/{}", node));
      const auto beat = store->check({name}) ? take(name) : std::string();
      if (beat != pulse.beat) {
        pulse.beat = beat;
        pulse.since = Clock::now();
      } else if (Clock::now() - pulse.since > kSilence && !pulse.reported) {
        pulse.reported = true;
        RankFailure lost;
        lost.kind = RankFailure::Kind::kLost;
        lost.node = node;
        lost.host = hosts[static_cast<size_t>(node)];
        lost.status.code = 1;
        publish(lost);
      }
    }
  }

  void publish(const RankFailure& failure) {
    const auto index = store->add(attempt_key("failures"), 1);
    put(attempt_key(fmt::format("failure/{}", index)), failure.to_json());
  }
};

NodeLink::NodeLink(const NodeLinkSpec& spec) : shared_(std::make_shared<Shared>(spec)) {
  // Not joined but watched through `finished`: a call to a machine that has vanished may never come back.
  std::thread([shared = shared_] { shared->run(); }).detach();
}

NodeLink::~NodeLink() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, 2s, [&] { return shared_->finished; });
}

int NodeLink::fd() const {
  return shared_->wake_read.get();
}

NodeNews NodeLink::news() {
  char drained[64];
  while (::read(shared_->wake_read.get(), drained, sizeof(drained)) > 0) {
  }
  std::lock_guard lock(shared_->mutex);
  auto news = shared_->news;
  if (news.joined && news.error.empty() && Clock::now() - shared_->last_answer > kSilence + 5s)
    news.error = fmt::format("[launch] the launcher of node 0 at {} port {} does not answer any more",
                             shared_->spec.address, shared_->spec.port);
  return news;
}

void NodeLink::order(std::function<void(Shared&)> command) {
  std::lock_guard lock(shared_->mutex);
  shared_->commands.push_back(std::move(command));
  shared_->changed.notify_all();
}

void NodeLink::begin_attempt(int attempt) {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->news.attempt = attempt;
    shared_->news.failures.clear();
    shared_->news.all_done = shared_->news.all_ended = false;
  }
  order([attempt](Shared& s) {
    s.attempt = attempt;
    s.failures_seen = 0;
    s.awaits_done = s.awaits_ended = false;
  });
}

void NodeLink::report(const RankFailure& failure) {
  order([failure](Shared& s) { s.publish(failure); });
}

void NodeLink::done() {
  order([](Shared& s) {
    s.awaits_done = true;
    if (s.store->add(s.attempt_key("done"), 1) == s.spec.num_nodes) s.put(s.attempt_key("all_done"), "1");
  });
}

void NodeLink::ended() {
  order([](Shared& s) {
    s.awaits_ended = true;
    s.store->add(s.attempt_key("ended"), 1);
  });
}

std::vector<std::string> NodeLink::leave(std::chrono::milliseconds patience) {
  order([](Shared& s) {
    s.awaits_farewell = true;
    s.put(Shared::key(fmt::format("farewell/{}", s.spec.node_rank)), "1");
  });
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, patience, [&] { return shared_->news.all_left || shared_->finished; });
  return shared_->news.silent;
}

}  // namespace levin::detail
