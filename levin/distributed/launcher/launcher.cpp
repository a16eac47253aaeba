#include "levin/distributed/launcher/launcher.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/host.h"
#include "levin/distributed/rank_group.h"
#include "levin/distributed/save_mark.h"
#include "levin/distributed/store.h"

extern char** environ;

namespace levin {
namespace {

using namespace std::chrono_literals;
using namespace levin::detail;
using Clock = std::chrono::steady_clock;

void check(const LaunchSpec& spec) {
  LEVIN_CHECK(!spec.command.empty(), "[launch] no program was given");
  LEVIN_CHECK(spec.nproc >= 1, "[launch] nproc_per_node=", spec.nproc, " must be at least 1");
  LEVIN_CHECK(spec.nnodes >= 1, "[launch] nnodes=", spec.nnodes, " must be at least 1");
  LEVIN_CHECK(spec.node_rank >= -1 && spec.node_rank < spec.nnodes, "[launch] node_rank=", spec.node_rank,
              " does not fit nnodes=", spec.nnodes, "; it must be 0 to ", spec.nnodes - 1);
  LEVIN_CHECK(spec.master_port >= 0 && spec.master_port <= 65535, "[launch] master_port=", spec.master_port,
              " is not a port: 1 to 65535");
  LEVIN_CHECK(spec.nnodes == 1 || spec.master_port != 0,
              "[launch] master_port is not set; with several nodes all must be told the same one");
  LEVIN_CHECK(spec.nnodes == 1 || !spec.master_addr.empty(),
              "[launch] master_addr is not set; with several nodes it must name the machine of node 0");
  LEVIN_CHECK(spec.max_restarts >= 0, "[launch] max_restarts=", spec.max_restarts, " must be at least 0");
  LEVIN_CHECK(!spec.run_id.empty(), "[launch] run_id is empty");
}

// Pipes must not take the numbers of outputs that the caller has closed.
void open_standard_files() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) {
      const int opened = ::open("/dev/null", O_RDWR);
      (void)opened;
    }
}

/// c10d warns of a broken connection with a stack trace. The launcher says in a line of its own what that means.
class QuietStore {
 public:
  QuietStore() : before_(FLAGS_caffe2_log_level) {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  ~QuietStore() { FLAGS_caffe2_log_level = before_; }
  QuietStore(const QuietStore&) = delete;
  QuietStore& operator=(const QuietStore&) = delete;

 private:
  int before_;
};

/// Files that ranks lock while they write a checkpoint. Without a folder for temporary files there are none, and ranks
/// have the grace time alone.
class SaveMarks {
 public:
  explicit SaveMarks(int ranks) {
    std::error_code error;
    const auto base = std::filesystem::temp_directory_path(error);
    std::string folder = (base / "levin_marks_XXXXXX").string();
    if (error || !::mkdtemp(folder.data())) return;
    folder_ = folder;
    for (int i = 0; i < ranks; ++i) const Fd made(::open(path(i).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  ~SaveMarks() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  SaveMarks(const SaveMarks&) = delete;
  SaveMarks& operator=(const SaveMarks&) = delete;

  std::string of(int local) const { return folder_.empty() ? "" : path(local); }

 private:
  std::string path(int local) const { return (folder_ / std::to_string(local)).string(); }
  std::filesystem::path folder_;
};

/// One call of launch().
class LaunchedRun {
 public:
  LaunchedRun(const LaunchSpec& spec, std::string program)
      : spec_(spec), program_(std::move(program)), host_(host_name()), marks_(spec.nproc) {
    nproc_.assign(1, spec.nproc);
    max_restarts_ = spec.max_restarts;
  }

  int go() {
    make_log_folder();
    int status = 1;
    if (spec_.nnodes == 1) {
      status = attempts();
    } else if (const auto stopped = join_nodes()) {
      status = *stopped;
    } else {
      status = attempts();
      // Whoever has been told that a node is lost need not wait for it again.
      const std::chrono::milliseconds patience = status == 0 ? 10000ms : lost_ ? 500ms : spec_.stop_grace + 2s;
      for (const auto& node : link_->leave(patience))
        if (!lost_)
          say(fmt::format("levin: node {} did not say how it ended; its launcher or its machine may have died", node));
    }
    // Whatever the others have printed since: the last line tells where to look.
    if (failure_ && failure_->kind != RankFailure::Kind::kStopped && !failure_->told)
      say(summary(*failure_, spec_.nnodes > 1));
    // After success the reader of the output has all the time it wants; a signal still ends it.
    while (!console_.flush(status == 0 ? std::chrono::hours(24) : std::chrono::milliseconds(1s), signals_.fd()))
      if (const auto signal = stopping_signal()) return status == 0 ? 128 + *signal : status;
    return status;
  }

 private:
  void say(const std::string& line) { console_.line(Stream::kErr, line); }

  int attempts() {
    for (int attempt = 0;; ++attempt) {
      if (spec_.nnodes == 1) store_ = host_store("127.0.0.1", attempt == 0 ? spec_.master_port : 0, 5min);
      if (link_) link_->begin_attempt(attempt);
      const auto failure = run_ranks(plan(attempt), console_, signals_, link_.get());
      failure_ = failure;
      if (!failure) return 0;
      lost_ = failure->kind == RankFailure::Kind::kLost;
      const bool by_a_rank =
          failure->kind == RankFailure::Kind::kRank || failure->kind == RankFailure::Kind::kLeftEarly;
      if (!by_a_rank || attempt >= max_restarts_) return failure->status.shell_status();
      if (link_ && !all_nodes_ended()) return failure->status.shell_status();
      say(fmt::format("levin: starting all ranks again (restart {} of {})", attempt + 1, max_restarts_));
    }
  }

  /// Waits for the next news, signal or time limit.
  void wait(Clock::duration patience) {
    std::vector<pollfd> polls{{signals_.fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}};
    console_.add_to(polls);
    ::poll(polls.data(), polls.size(),
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(patience).count()));
    console_.write_ready();
  }

  std::optional<int> stopping_signal() {
    for (const int signal : signals_.take())
      if (signal != SIGCHLD) return signal;
    return std::nullopt;
  }

  /// Returns an exit status when the run was stopped before it began.
  std::optional<int> join_nodes() {
    NodeLinkSpec link{.num_nodes = spec_.nnodes,
                      .node_rank = spec_.node_rank,
                      .nproc = spec_.nproc,
                      .max_restarts = spec_.max_restarts,
                      .address = spec_.master_addr,
                      .port = spec_.master_port,
                      .host = host_,
                      .join_timeout = spec_.join_timeout};
    if (spec_.node_rank == 0) {
      store_ = host_store(spec_.master_addr, spec_.master_port, 5min);
    } else if (spec_.node_rank < 0) {
      try {
        store_ = host_store(spec_.master_addr, spec_.master_port, 5min);
        link.node_rank = 0;
      } catch (const Error&) {
        // Not an address of this machine, or another node of this machine serves it already.
      }
    }
    link_ = std::make_unique<NodeLink>(link);
    for (auto next_line = Clock::now() + 3s;;) {
      wait(1s);
      const auto news = link_->news();
      LEVIN_CHECK(news.error.empty(), news.error);
      if (news.joined) {
        nproc_ = news.nproc;
        node_ = news.node_rank;
        max_restarts_ = news.max_restarts;
        return std::nullopt;
      }
      if (const auto signal = stopping_signal()) {
        say(fmt::format("levin: stopped by {} while waiting for {}", signal_name(*signal), news.waiting_for));
        return 128 + *signal;
      }
      if (Clock::now() >= next_line) {
        say("levin: waiting for " + news.waiting_for);
        next_line = Clock::now() + 30s;
      }
    }
  }

  bool all_nodes_ended() {
    link_->ended();
    const auto deadline = Clock::now() + spec_.stop_grace + 5s;
    for (;;) {
      const auto news = link_->news();
      if (news.all_ended) return true;
      if (const auto signal = stopping_signal()) {
        const auto stopped = RankFailure::stopped_by(*signal, node_, host_);
        link_->report(stopped);
        say(describe(stopped, true));
        return false;
      }
      for (const auto& failure : news.failures) {
        if (failure.kind != RankFailure::Kind::kStopped) continue;
        say(describe(failure, true));
        return false;
      }
      if (!news.error.empty() || Clock::now() >= deadline) {
        say("levin: no restart: not every node has ended its ranks");
        return false;
      }
      wait(500ms);
    }
  }

  void make_log_folder() {
    const bool wants_files = [&] {
      for (int i = 0; i < spec_.nproc; ++i)
        if (spec_.redirects.of(i) != 0 || spec_.tee.of(i) != 0) return true;
      return false;
    }();
    if (spec_.log_dir.empty() && !wants_files) return;
    const std::filesystem::path base =
        spec_.log_dir.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(spec_.log_dir);
    std::error_code error;
    std::filesystem::create_directories(base, error);
    std::string folder = (base / ((spec_.log_dir.empty() ? "levin_" : "") + spec_.run_id + "_XXXXXX")).string();
    LEVIN_CHECK(!error && ::mkdtemp(folder.data()), "[launch] log folder \"", base.string(),
                "\" cannot be written: ", error ? error.message() : std::strerror(errno));
    log_folder_ = folder;
    say("levin: log files in " + folder);
  }

  GroupSpec plan(int attempt) {
    GroupSpec group;
    group.node = node_;
    group.host = host_;
    group.several_nodes = spec_.nnodes > 1;
    group.stop_grace = spec_.stop_grace;
    group.save_grace = spec_.save_grace;
    const int first = std::accumulate(nproc_.begin(), nproc_.begin() + node_, 0);
    for (int local = 0; local < spec_.nproc; ++local) {
      RankPlan rank;
      rank.rank = first + local;
      rank.process.program = program_;
      rank.process.arguments = spec_.command;
      rank.process.inherit_stdin = rank.rank == 0 && !::isatty(STDIN_FILENO);
      std::filesystem::path folder;
      if (!log_folder_.empty()) {
        folder = log_folder_ / fmt::format("attempt_{}", attempt) / std::to_string(local);
        make_folder(folder);
      }
      rank.save_mark = marks_.of(local);
      rank.process.environment = environment(attempt, local, rank.rank, folder);
      rank.out = rule(1, local, rank.rank, folder / "stdout.log");
      rank.err = rule(2, local, rank.rank, folder / "stderr.log");
      group.ranks.push_back(std::move(rank));
    }
    return group;
  }

  RelayRule rule(int bit, int local, int rank, const std::filesystem::path& file) const {
    const bool tee = spec_.tee.of(local) & bit;
    const bool redirect = spec_.redirects.of(local) & bit;
    const auto& shown = spec_.shown_local_ranks;
    RelayRule rule;
    rule.to_console =
        (!redirect || tee) && (shown.empty() || std::find(shown.begin(), shown.end(), local) != shown.end());
    if (tee || redirect) rule.file = file.string();
    if (rank != 0) rule.prefix = fmt::format("[rank {}] ", rank);
    return rule;
  }

  std::vector<std::string> environment(int attempt, int local, int rank, const std::filesystem::path& folder) const {
    const auto world = std::to_string(std::accumulate(nproc_.begin(), nproc_.end(), 0));
    std::map<std::string, std::string> set{
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(local)},
        {"WORLD_SIZE", world},
        {"LOCAL_WORLD_SIZE", std::to_string(spec_.nproc)},
        {"GROUP_RANK", std::to_string(node_)},
        {"GROUP_WORLD_SIZE", std::to_string(spec_.nnodes)},
        {"NODE_RANK", std::to_string(node_)},
        {"ROLE_NAME", spec_.role},
        {"ROLE_RANK", std::to_string(rank)},
        {"ROLE_WORLD_SIZE", world},
        {"MASTER_ADDR", spec_.nnodes == 1 ? "127.0.0.1" : spec_.master_addr},
        {"MASTER_PORT", std::to_string(spec_.nnodes == 1 ? store_.port : spec_.master_port)},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(max_restarts_)},
        {"TORCHELASTIC_RUN_ID", spec_.run_id},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    };
    if (const auto mark = marks_.of(local); !mark.empty()) set[kSaveMarkVariable] = mark;
    if (!folder.empty()) set["TORCHELASTIC_ERROR_FILE"] = (folder / "error.json").string();
    if (!std::getenv("OMP_NUM_THREADS")) {
      const int cores = static_cast<int>(std::thread::hardware_concurrency());
      set["OMP_NUM_THREADS"] = std::to_string(std::max(cores / spec_.nproc, 1));
    }
    winsize size{};
    // The rank writes to a pipe and could not ask.
    if (rank == 0 && ::isatty(STDERR_FILENO) && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      set["LEVIN_TERMINAL_WIDTH"] = std::to_string(size.ws_col);

    std::vector<std::string> result;
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view text(*entry);
      const std::string name(text.substr(0, text.find('=')));
      // Another launcher's names for the same things would contradict ours.
      if (!set.contains(name) && name != "GLOBAL_RANK" && name != "LEVIN_TERMINAL_WIDTH" && name != kSaveMarkVariable)
        result.emplace_back(text);
    }
    for (const auto& [name, value] : set) result.push_back(name + "=" + value);
    return result;
  }

  const LaunchSpec& spec_;
  std::string program_;
  std::string host_;
  SaveMarks marks_;
  QuietStore quiet_;
  SignalPipe signals_;
  Console console_;
  HostedStore store_;
  std::unique_ptr<NodeLink> link_;  // after the store: it goes first
  std::vector<int> nproc_;
  int node_ = 0;
  int max_restarts_ = 0;
  bool lost_ = false;                   // a node
  std::optional<RankFailure> failure_;  // of the last attempt
  std::filesystem::path log_folder_;
};

}  // namespace

int launch(const LaunchSpec& spec) {
  check(spec);
  open_standard_files();
  return LaunchedRun(spec, find_program(spec.command.front())).go();
}

namespace {

int launch_own_program(const LaunchSpec& spec) {
  check(spec);
  open_standard_files();
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  // A program that was rebuilt while it ran has no path any more, but can still be started.
  const bool there = !error && ::access(path.c_str(), X_OK) == 0;
  return LaunchedRun(spec, there ? path.string() : "/proc/self/exe").go();
}

}  // namespace

int launch_self(const std::vector<std::string>& argv, int nproc, int num_nodes, int node_rank,
                const std::string& master_addr, int master_port) {
  LaunchSpec spec;
  spec.command = argv;
  spec.nproc = nproc;
  spec.nnodes = num_nodes;
  spec.node_rank = node_rank;
  spec.master_addr = master_addr;
  spec.master_port = master_port;
  return launch_own_program(spec);
}

int launch_self(const std::vector<std::string>& argv, int nproc, std::chrono::milliseconds stop_grace) {
  LaunchSpec spec;
  spec.command = argv;
  spec.nproc = nproc;
  spec.stop_grace = stop_grace;
  return launch_own_program(spec);
}

int launch_self(const std::vector<std::string>& argv, const Placement& place) {
  return launch_self(argv, place.local_world_size, place.world_size / place.local_world_size, place.node_rank,
                     place.master_addr, place.master_port);
}

}  // namespace levin
