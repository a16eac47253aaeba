#include "levin/distributed/process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/distributed/launcher/signal_pipe.h"

namespace levin::detail {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

struct ChildPlan {
  const char* program;
  char** arguments;
  char** environment;
  int in, out, err, failure;
  pid_t parent;
};

// Between fork and exec, in a process that may have had threads: only system calls, no allocation.
[[noreturn]] void become_program(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(125);  // it died before the line above
  SignalPipe::restore_in_child();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int error = 0;
  if ((plan.in >= 0 && ::dup2(plan.in, 0) < 0) || ::dup2(plan.out, 1) < 0 || ::dup2(plan.err, 2) < 0) error = errno;
  if (error == 0) {
    ::execve(plan.program, plan.arguments, plan.environment);
    error = errno;
  }
  const auto written = ::write(plan.failure, &error, sizeof(error));
  (void)written;
  ::_exit(127);
}

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  LEVIN_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "[launch] no pipe: ", std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string find_program(const std::string& name) {
  LEVIN_CHECK(!name.empty(), "[launch] no program was given");
  const auto is_folder = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  };
  const auto exists = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  const auto runs = [&](const std::string& path) { return ::access(path.c_str(), X_OK) == 0 && !is_folder(path); };
  if (name.find('/') != std::string::npos) {
    LEVIN_CHECK(exists(name), "[launch] program \"", name, "\" is not found");
    LEVIN_CHECK(!is_folder(name), "[launch] program \"", name, "\" is a folder");
    LEVIN_CHECK(
        runs(name), "[launch] program \"", name, "\" is not executable",
        name.ends_with(".py") ? fmt::format(" (programs are started as they are: python {})", name) : " (chmod +x?)");
    return name;
  }
  const char* variable = std::getenv("PATH");
  const std::string path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const auto folder = path.substr(begin, end - begin);
    const auto candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(candidate)) return candidate;
    begin = end + 1;
  }
  LEVIN_CHECK(!exists(name), "[launch] program \"", name, "\" is not in PATH; did you mean \"./", name, "\"?");
  throw Error(fmt::format("[launch] program \"{}\" is not found in PATH", name));
}

Process::Process(const ProcessSpec& spec) {
  auto arguments = pointers(spec.arguments);
  auto environment = pointers(spec.environment);
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  auto [failure_read, failure_write] = make_pipe();
  const Fd null(spec.inherit_stdin ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const ChildPlan plan{spec.program.c_str(), arguments.data(), environment.data(),  null.get(),
                       out_write.get(),      err_write.get(),  failure_write.get(), ::getpid()};
  {
    // The child must not run a handler of ours: it would report to our pipe.
    const BlockSignals block;
    pid_ = ::fork();
    if (pid_ == 0) become_program(plan);
  }
  LEVIN_CHECK(pid_ > 0, "[launch] a process could not be started: ", std::strerror(errno));
  ::setpgid(pid_, pid_);  // whoever comes first: the group must exist before anyone signals it
  failure_write.reset();
  int error = 0;
  ssize_t got;
  while ((got = ::read(failure_read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    ::waitpid(pid_, nullptr, 0);
    throw Error(fmt::format("[launch] program \"{}\" cannot be started: {}", spec.program, std::strerror(error)));
  }
  ::fcntl(out_read.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err_read.get(), F_SETFL, O_NONBLOCK);
  out_ = std::move(out_read);
  err_ = std::move(err_read);
}

Process::~Process() {
  if (group_is_ours_ || !status_) ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, abandoned_ ? WNOHANG : 0) < 0 && errno == EINTR) {
  }
}

std::optional<ExitStatus> Process::status() {
  if (status_) return status_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  status_ = info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
  return status_;
}

void Process::signal_group(int signal) const {
  ::kill(-pid_, signal);
}

}  // namespace levin::detail
