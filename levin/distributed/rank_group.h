#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "levin/distributed/launcher/node_link.h"
#include "levin/distributed/launcher/output_relay.h"
#include "levin/distributed/launcher/signal_pipe.h"
#include "levin/distributed/process.h"
#include "levin/distributed/rank_failure.h"

namespace levin::detail {

struct RankPlan {
  int rank = 0;
  ProcessSpec process;
  RelayRule out;
  RelayRule err;
  /// The file that the rank locks while it writes a checkpoint; empty: it cannot say so.
  std::string save_mark;
};

struct GroupSpec {
  std::vector<RankPlan> ranks;
  int node = 0;
  std::string host;
  bool several_nodes = false;
  std::chrono::milliseconds stop_grace{};
  std::chrono::milliseconds save_grace{};
};

/// Starts the ranks of this node, passes their output on and waits until all have ended, here and on the other nodes
/// (`link`, null when there are none). The first failure anywhere, or a signal to this process, ends all: it is
/// printed, the ranks are asked to end, and killed after the grace time; a checkpoint that is being written is waited
/// for. The last line names the rank that failed first. Returns what ended the attempt; nothing when all went well.
std::optional<RankFailure> run_ranks(const GroupSpec& spec, Console& console, SignalPipe& signals, NodeLink* link);

}  // namespace levin::detail
