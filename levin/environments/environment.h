#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Where a process stands among the processes of a run. A plain value: everything the upper floors need to join a
/// group.
struct Placement {
  int global_rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// True when a launcher already hosts the store at master_addr:master_port and even rank 0 only connects.
  bool store_is_hosted = false;
  /// Which start of the run this is: keys in a shared store are kept apart by it.
  int attempt = 0;

  bool operator==(const Placement&) const = default;
};

/// Reads a variable of the environment. Tests pass their own.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> read_process_variable(const char* name);

/// What a run asks for, before it is known who started it. 0 = not asked.
struct WorldAsked {
  int devices = 1;
  int num_nodes = 1;
};

/// A way in which processes of a run are started and told who they are: by Levin itself, torchrun, SLURM, MPI, LSF,
/// Kubeflow. The only readers of rank variables.
class Environment {
 public:
  virtual ~Environment() = default;

  /// "torchelastic" (torchrun, and Levin's own launcher, whose ranks get torchrun's variables), "slurm", "mpi", "lsf",
  /// "kubeflow", "levin" (started by hand).
  virtual std::string name() const = 0;

  /// Whether something outside this program has started the other processes already.
  virtual bool creates_processes_externally() const = 0;

  /// This process's place. Throws Error when a variable is missing or malformed, or when the world that was started is
  /// not the one asked for; the line names the variable, its value and what was asked.
  virtual Placement placement(const WorldAsked& asked) const = 0;
};

/// "auto" and the names that detect_environment knows.
std::vector<std::string> environment_names();

/// Finds out who started this process: torchelastic, then SLURM, LSF, MPI, else Levin's own. `name` picks one by hand
/// ("kubeflow" is only found so); an unknown name is an Error with the known ones.
std::unique_ptr<Environment> detect_environment(const std::string& name = "auto",
                                                const ReadVariable& read = read_process_variable);

}  // namespace levin
