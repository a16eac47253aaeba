#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "levin/environments/environment.h"

namespace levin {

/// Which of a rank's outputs something applies to: 0 none, 1 stdout, 2 stderr, 3 both; for all, with exceptions by
/// local rank.
struct StreamChoice {
  int all = 0;
  std::map<int, int> by_local_rank = {};

  int of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? all : found->second;
  }
  bool operator==(const StreamChoice&) const = default;
};

/// What to start, where, and what to do with its output.
struct LaunchSpec {
  /// The program (a path, or a name in PATH) and its arguments.
  std::vector<std::string> command;
  /// Ranks on this node.
  int nproc = 1;
  int nnodes = 1;
  /// -1: the nodes agree among themselves; the one that can serve the store at master_addr becomes 0.
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  /// 0: any free one (one node only).
  int master_port = 0;
  /// How often all ranks are started again after a failure.
  int max_restarts = 0;
  std::string run_id = "none";
  std::string role = "default";
  /// Folder for log files; empty: none, or a temporary one when `redirects` or `tee` asks for files.
  std::string log_dir = {};
  /// Outputs that go to files instead of the console.
  StreamChoice redirects = {};
  /// Outputs that go to files and to the console.
  StreamChoice tee = {};
  /// The local ranks whose output is shown; empty: all.
  std::vector<int> shown_local_ranks = {};
  /// How long ranks have between SIGTERM and SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(5);
  /// How long a rank that is writing a checkpoint is waited for before it is stopped.
  std::chrono::milliseconds save_grace = std::chrono::minutes(10);
  /// How long to wait for the other nodes at the start.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
};

/// Starts the ranks of this node, tells them who they are by torchrun's variables, serves the store (on node 0), passes
/// their output on and watches them. The first rank that fails ends the run, on all nodes: one line names it and why it
/// ended.
///
/// Returns the exit status for the calling program: 0; that of the failed rank, or 128 + its signal; 128 + the signal
/// that stopped this process. Throws Error when the run cannot be started. Signal handlers are set while it runs and
/// not after. The ranks die with the calling thread, even when it is killed.
int launch(const LaunchSpec& spec);

/// Runs this very program again, with the same arguments, as `nproc` ranks. The caller is to exit with the result.
int launch_self(const std::vector<std::string>& argv, int nproc, int num_nodes = 1, int node_rank = 0,
                const std::string& master_addr = "127.0.0.1", int master_port = 0);

/// As above on one node; `stop_grace` as in LaunchSpec.
int launch_self(const std::vector<std::string>& argv, int nproc, std::chrono::milliseconds stop_grace);

/// As above, from the place that the environment gave to the first process of this node.
int launch_self(const std::vector<std::string>& argv, const Placement& place);

}  // namespace levin
