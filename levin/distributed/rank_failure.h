#pragma once

#include <span>
#include <string>
#include <vector>

#include "levin/distributed/process.h"

namespace levin::detail {

/// Why an attempt to run all ranks ended early.
struct RankFailure {
  enum class Kind {
    kRank,       // a rank ended with an error
    kStopped,    // a launcher was told to stop; status.signal says by what
    kLost,       // a node does not answer any more
    kLeftEarly,  // a rank ended with exit status 0 while others needed it; status is that of one of those
  };
  Kind kind = Kind::kRank;
  int node = 0;
  std::string host;
  int rank = -1;
  int pid = 0;
  ExitStatus status;
  std::vector<std::string> last_lines;  // of the rank's stderr

  /// The launcher of a node was told to stop.
  static RankFailure stopped_by(int signal, int node, std::string host);

  std::string to_json() const;
  static RankFailure from_json(const std::string& text);
};

/// The failure that explains the others. `failures` are in the order in which they were seen; when one rank dies the
/// others fail within moments as their connections break, so the first to be seen need not be the cause.
const RankFailure& root_cause(std::span<const RankFailure> failures);

/// The ranks that a failure's lines say are to blame ("rank 1 died"), itself excepted.
std::vector<int> blamed_ranks(const RankFailure& failure);

/// One line for the end of a run: who failed first, how, and the last thing it said.
std::string summary(const RankFailure& failure, bool several_nodes);

/// One line, and the rank's last lines below it. Nodes are named when there are several.
std::string describe(const RankFailure& failure, bool several_nodes);

}  // namespace levin::detail
