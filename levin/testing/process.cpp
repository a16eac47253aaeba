#include "levin/testing/process.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/testing/eventually.h"
#include "levin/testing/paths.h"

extern char** environ;

namespace levin::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kLimit = 600s;

/// A file of /proc, whose size is not known; empty when the process is gone.
std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool has_entry(const std::string& environment, const std::string& entry) {
  return ('\0' + environment).find('\0' + entry + '\0') != std::string::npos;
}

bool is_zombie(const std::string& folder) {
  const auto stat = slurp(folder + "/stat");
  const auto close = stat.rfind(')');
  return close != std::string::npos && close + 2 < stat.size() && stat[close + 2] == 'Z';
}

}  // namespace

Process::Process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                 const std::string& input) {
  static std::atomic<int> count{0};
  token_ = "LEVIN_TEST_TOKEN=" + std::to_string(::getpid()) + "_" + std::to_string(count++);
  std::vector<std::string> variables{token_};
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; *entry; ++entry) {
    const auto name = name_of(*entry);
    bool replaced = name == name_of(token_);
    for (const auto& change : environment) replaced = replaced || name == name_of(change);
    if (!replaced) variables.emplace_back(*entry);
  }
  for (const auto& change : environment)
    if (change.find('=') != std::string::npos) variables.push_back(change);
  std::vector<char*> argv, envp;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  for (const auto& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  int in[2], out[2], err[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) std::abort();
  start_ = Clock::now();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  const auto written = ::write(in[1], input.data(), input.size());
  (void)written;
  ::close(in[1]);
  fds_[0] = out[0];
  fds_[1] = err[0];
}

Process::~Process() {
  if (!waited_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const auto pid : descendants()) ::kill(pid, SIGKILL);
  for (const int fd : fds_)
    if (fd >= 0) ::close(fd);
}

void Process::signal(int signal) const {
  ::kill(pid_, signal);
}

bool Process::read_some(std::chrono::milliseconds patience) {
  pollfd polls[2] = {{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}};
  if (::poll(polls, 2, static_cast<int>(patience.count())) <= 0) return fds_[0] >= 0 || fds_[1] >= 0;
  for (int i = 0; i < 2; ++i) {
    if (fds_[i] < 0 || polls[i].revents == 0) continue;
    char buffer[65536];
    const auto got = ::read(fds_[i], buffer, sizeof(buffer));
    if (got > 0) {
      (i == 0 ? out_ : err_).append(buffer, static_cast<size_t>(got));
    } else {
      ::close(fds_[i]);
      fds_[i] = -1;
    }
  }
  return fds_[0] >= 0 || fds_[1] >= 0;
}

bool Process::wait_for(const std::string& text) {
  const auto found = [&] { return out_.find(text) != std::string::npos || err_.find(text) != std::string::npos; };
  while (!found() && Clock::now() < start_ + kLimit)
    if (!read_some(100ms)) break;
  return found();
}

int Process::wait() {
  int status = 0;
  while (!waited_) {
    read_some(20ms);
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      waited_ = true;
      status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (Clock::now() > start_ + kLimit) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      waited_ = true;
      status_ = -1;
    }
  }
  seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto deadline = Clock::now() + 300ms;
  while (Clock::now() < deadline && read_some(20ms)) {
  }
  return status_;
}

std::vector<pid_t> Process::descendants() const {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == pid_) continue;
    if (has_entry(slurp(entry.path().string() + "/environ"), token_) && !is_zombie(entry.path().string()))
      found.push_back(pid);
  }
  return found;
}

pid_t Process::rank(int rank) const {
  for (const auto pid : descendants())
    if (has_entry(slurp("/proc/" + std::to_string(pid) + "/environ"), "RANK=" + std::to_string(rank))) return pid;
  return 0;
}

bool Process::all_gone() const {
  return eventually([&] { return descendants().empty(); }, 60s);
}

ProgramResult run_program(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                          const std::string& input) {
  Process process(command, environment, input);
  const int status = process.wait();
  return {status, process.out(), process.err(), process.seconds()};
}

std::vector<std::string> levin_run(const std::vector<std::string>& words) {
  std::vector<std::string> command{levin_program(), "run"};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

}  // namespace levin::testing
