#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/distributed/process.h"

namespace levin::detail {

/// How the line begins with which a rank tells why it ends (run_main).
inline constexpr std::string_view kErrorMark = "error: ";

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
  bool told = false;                    // one line has said all, and it is the last one

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

/// The error line that all failures have in common, of ranks that ended on their own and blame no other; empty where
/// they differ. Such a line needs no further explanation.
std::string common_error(std::span<const RankFailure> failures);

/// One line for the end of a run: who failed first, how, and the last thing it said.
std::string summary(const RankFailure& failure, bool several_nodes);

/// One line, and the rank's last lines below it. Nodes are named when there are several.
std::string describe(const RankFailure& failure, bool several_nodes);

}  // namespace levin::detail
