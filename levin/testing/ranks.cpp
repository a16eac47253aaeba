#include "levin/testing/ranks.h"

#include <csignal>
#include <optional>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/distributed/store.h"

namespace levin::testing {
namespace {

using Clock = std::chrono::steady_clock;

void write_all(int fd, const void* data, size_t size) {
  for (const auto* at = static_cast<const char*>(data); size > 0;) {
    const auto n = ::write(fd, at, size);
    if (n <= 0) return;
    at += n;
    size -= static_cast<size_t>(n);
  }
}

std::string to_bytes(const std::vector<at::Tensor>& tensors) {
  std::ostringstream out;
  torch::save(tensors, out);
  return out.str();
}

/// The expectations that have failed in the running test so far.
std::vector<std::string> failed_expectations() {
  std::vector<std::string> messages;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  for (int i = 0; test && i < test->result()->total_part_count(); ++i) {
    const auto& part = test->result()->GetTestPartResult(i);
    if (part.failed())
      messages.push_back(
          fmt::format("{}:{}: {}", part.file_name() ? part.file_name() : "", part.line_number(), part.message()));
  }
  return messages;
}

struct Child {
  pid_t pid = -1;
  int port_in = -1;  // the parent tells the port here
  int result_out = -1;
  std::string bytes;
  bool closed = false;  // its end of result_out
  bool done = false;
  RankResult result;
};

/// The life of one rank. What it found out goes through the pipe as text, and the tensors after it.
[[noreturn]] void live_as_rank(int rank, int world, int port_pipe, int result_pipe,
                               const std::function<detail::Returned(Collective&)>& body, const RanksOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans when the test program is killed
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());  // the parent prints
  at::set_num_threads(1);
  const auto known_failures = failed_expectations().size();

  nlohmann::json result{{"error", ""}, {"text", ""}};
  std::string tensors;
  int port = 0;
  try {
    if (::read(port_pipe, &port, sizeof(port)) != sizeof(port)) ::_exit(9);
    Placement placement{
        .global_rank = rank, .local_rank = rank, .world_size = world, .local_world_size = world, .master_port = port};
    placement.store_is_hosted = !options.rank_0_serves_store;
    if (options.edit_placement) options.edit_placement(placement);
    auto group = join_group(placement, options.device, options.collective);
    detail::Returned returned;
    try {
      returned = body(*group);
    } catch (const std::exception& error) {
      report_failure(*group, one_line(error));
      throw;
    }
    result["text"] = returned.text;
    if (!returned.tensors.empty()) tensors = to_bytes(returned.tensors);
  } catch (const Error& error) {
    result["error"] = error.what();  // whole: it must be one line on its own
  } catch (const std::exception& error) {
    result["error"] = one_line(error);
  }
  auto failures = failed_expectations();
  failures.erase(failures.begin(),
                 failures.begin() + static_cast<std::ptrdiff_t>(std::min(known_failures, failures.size())));
  result["failures"] = failures;
  const auto text = result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const uint64_t size = text.size();
  write_all(result_pipe, &size, sizeof(size));
  write_all(result_pipe, text.data(), text.size());
  write_all(result_pipe, tensors.data(), tensors.size());
  ::close(result_pipe);
  std::fflush(nullptr);
  if (options.exit_normally) std::exit(0);
  ::_exit(0);
}

/// Reads what is there.
void drain(Child& child) {
  std::array<char, 65536> buffer;
  while (true) {
    const auto n = ::read(child.result_out, buffer.data(), buffer.size());
    if (n > 0)
      child.bytes.append(buffer.data(), static_cast<size_t>(n));
    else {
      child.closed = child.closed || n == 0;
      return;
    }
  }
}

/// Until a rank writes or ends; a rank that has closed its pipe ends in a moment.
void wait_for_news(const std::vector<Child>& children) {
  std::vector<pollfd> pipes;
  int patience_ms = 100;
  for (const auto& child : children) {
    if (child.done) continue;
    if (child.closed)
      patience_ms = 1;
    else
      pipes.push_back({.fd = child.result_out, .events = POLLIN, .revents = 0});
  }
  ::poll(pipes.data(), pipes.size(), patience_ms);
}

void unpack(Child& child) {
  uint64_t size = 0;
  if (child.bytes.size() < sizeof(size)) return;
  std::memcpy(&size, child.bytes.data(), sizeof(size));
  if (child.bytes.size() < sizeof(size) + size) return;
  const auto json = nlohmann::json::parse(child.bytes.substr(sizeof(size), size));
  child.result.error = json.at("error");
  child.result.text = json.at("text");
  child.result.failures = json.at("failures").get<std::vector<std::string>>();
  if (const auto rest = child.bytes.substr(sizeof(size) + size); !rest.empty()) {
    std::istringstream in(rest);
    torch::load(child.result.tensors, in);
  }
}

void wait_for(std::vector<Child>& children, Clock::time_point start, std::chrono::milliseconds limit) {
  bool killed = false;
  for (size_t left = children.size(); left > 0;) {
    for (auto& child : children) {
      if (child.done) continue;
      drain(child);
      int status = 0;
      if (::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      drain(child);
      child.done = true;
      child.result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
      child.result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      child.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      child.result.timed_out = killed;
      --left;
    }
    if (!killed && Clock::now() - start > limit) {
      killed = true;
      for (auto& child : children)
        if (!child.done) ::kill(child.pid, SIGKILL);
    }
    if (left > 0) wait_for_news(children);
  }
}

void complain(const RankResult& result, size_t rank, bool errors_expected) {
  for (const auto& failure : result.failures) ADD_FAILURE() << "rank " << rank << ": " << failure;
  if (result.timed_out) ADD_FAILURE() << "rank " << rank << " did not end in time and was killed";
  if (errors_expected) return;
  if (!result.error.empty()) ADD_FAILURE() << "rank " << rank << " threw: " << result.error;
  if (result.signal && !result.timed_out) ADD_FAILURE() << "rank " << rank << " was ended by signal " << result.signal;
  if (result.exit_code) ADD_FAILURE() << "rank " << rank << " ended with status " << result.exit_code;
}

}  // namespace

std::vector<RankResult> detail::run_ranks(int world, const std::function<Returned(Collective&)>& body,
                                          const RanksOptions& options) {
  std::fflush(nullptr);
  const auto start = Clock::now();
  std::vector<Child> children(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    std::array<int, 2> port_pipe{}, result_pipe{};
    if (::pipe2(port_pipe.data(), O_CLOEXEC) != 0 || ::pipe2(result_pipe.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int other = 0; other < rank; ++other) {  // an end that stays open here would hide that its reader is gone
        ::close(children[static_cast<size_t>(other)].port_in);
        ::close(children[static_cast<size_t>(other)].result_out);
      }
      ::close(port_pipe[1]);
      ::close(result_pipe[0]);
      live_as_rank(rank, world, port_pipe[0], result_pipe[1], body, options);
    }
    ::close(port_pipe[0]);
    ::close(result_pipe[1]);
    ::fcntl(result_pipe[0], F_SETFL, O_NONBLOCK);
    auto& child = children[static_cast<size_t>(rank)];
    child.pid = pid;
    child.port_in = port_pipe[1];
    child.result_out = result_pipe[0];
  }
  // Only now: a store has threads, and a process with threads must not fork.
  auto hosted = host_store("127.0.0.1", 0, std::chrono::seconds(60));
  if (options.rank_0_serves_store) hosted.store.reset();  // the port is free again
  for (auto& child : children) write_all(child.port_in, &hosted.port, sizeof(hosted.port));
  wait_for(children, start, options.limit);

  std::vector<RankResult> results;
  for (auto& child : children) {
    ::close(child.port_in);
    ::close(child.result_out);
    unpack(child);
    complain(child.result, results.size(), options.errors_expected);
    results.push_back(std::move(child.result));
  }
  return results;
}

std::vector<std::string> errors_of(const std::vector<RankResult>& results) {
  std::vector<std::string> errors;
  for (const auto& result : results) errors.push_back(result.error);
  return errors;
}

}  // namespace levin::testing
