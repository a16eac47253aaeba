#include "levin/distributed/rank_failure.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <regex>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

// Signals that come from outside or from a fault. SIGABRT is not one: a library that meets a closed connection in a
// thread of its own aborts the process.
bool is_sudden(int signal) {
  constexpr std::array kSudden{SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
  return std::find(kSudden.begin(), kSudden.end(), signal) != kSudden.end();
}

bool speaks_of_a_lost_peer(const RankFailure& failure) {
  constexpr std::array<std::string_view, 4> kWords{"Connection reset by peer", "Connection closed by peer",
                                                   "Broken pipe", "Connection refused"};
  return std::any_of(failure.last_lines.begin(), failure.last_lines.end(), [&](const auto& line) {
    return std::any_of(kWords.begin(), kWords.end(), [&](auto words) { return line.find(words) != std::string::npos; });
  });
}

// Smaller explains larger.
int order_of(const RankFailure& failure) {
  if (failure.kind == RankFailure::Kind::kStopped) return 0;
  if (failure.kind == RankFailure::Kind::kLeftEarly) return 3;
  if (failure.kind == RankFailure::Kind::kLost) return 4;
  if (is_sudden(failure.status.signal)) return 1;
  return speaks_of_a_lost_peer(failure) || !blamed_ranks(failure).empty() ? 5 : 2;
}

std::string how(const RankFailure& failure) {
  if (failure.status.signal == SIGKILL) return "was killed by SIGKILL (out of memory? the kernel log may tell)";
  if (failure.status.signal != 0) return fmt::format("was killed by {}", signal_name(failure.status.signal));
  return fmt::format("ended with exit status {}", failure.status.code);
}

std::string who(const RankFailure& failure, bool several_nodes) {
  return fmt::format("rank {} ({}pid {})", failure.rank,
                     several_nodes ? fmt::format("node {}, {}, ", failure.node, failure.host) : "", failure.pid);
}

}  // namespace

RankFailure RankFailure::stopped_by(int signal, int node, std::string host) {
  RankFailure failure;
  failure.kind = Kind::kStopped;
  failure.node = node;
  failure.host = std::move(host);
  failure.status.signal = signal;
  return failure;
}

std::string RankFailure::to_json() const {
  const nlohmann::json json{{"kind", static_cast<int>(kind)},
                            {"node", node},
                            {"host", host},
                            {"rank", rank},
                            {"pid", pid},
                            {"code", status.code},
                            {"signal", status.signal},
                            {"last_lines", last_lines}};
  // What a rank printed need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFailure RankFailure::from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    RankFailure failure;
    failure.kind = static_cast<Kind>(json.at("kind").get<int>());
    json.at("node").get_to(failure.node);
    json.at("host").get_to(failure.host);
    json.at("rank").get_to(failure.rank);
    json.at("pid").get_to(failure.pid);
    json.at("code").get_to(failure.status.code);
    json.at("signal").get_to(failure.status.signal);
    json.at("last_lines").get_to(failure.last_lines);
    return failure;
  } catch (const nlohmann::json::exception&) {
    throw Error("[launch] a node reported a failure in a form that this version does not know");
  }
}

const RankFailure& root_cause(std::span<const RankFailure> failures) {
  return *std::min_element(failures.begin(), failures.end(),
                           [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
}

std::vector<int> blamed_ranks(const RankFailure& failure) {
  static const std::regex kBlame(
      "ranks? ([0-9]+(?:(?:-|, | and )[0-9]+)*) (?:failed:|died|has left the group|have left the group|did not "
      "arrive|has not been heard of)");
  static const std::regex kRun("([0-9]{1,8})(?:-([0-9]{1,8}))?");
  constexpr int kMostRanks = 1 << 20;  // the text may be anybody's
  std::vector<int> blamed;
  for (const auto& line : failure.last_lines)
    for (std::sregex_iterator it(line.begin(), line.end(), kBlame), end; it != end; ++it) {
      const auto list = (*it)[1].str();
      for (std::sregex_iterator run(list.begin(), list.end(), kRun); run != end; ++run) {
        const int first = std::stoi((*run)[1]), last = (*run)[2].matched ? std::stoi((*run)[2]) : first;
        for (int rank = first; rank <= std::min(last, first + kMostRanks); ++rank)
          if (rank != failure.rank) blamed.push_back(rank);
      }
    }
  return blamed;
}

std::string common_error(std::span<const RankFailure> failures) {
  std::string common;
  for (const auto& failure : failures) {
    const bool on_its_own = failure.kind == RankFailure::Kind::kRank && failure.status.signal == 0 &&
                            failure.status.code == failures.front().status.code && !speaks_of_a_lost_peer(failure) &&
                            blamed_ranks(failure).empty();
    const auto line = std::find_if(failure.last_lines.rbegin(), failure.last_lines.rend(),
                                   [](const auto& text) { return text.starts_with(kErrorMark); });
    if (!on_its_own || line == failure.last_lines.rend()) return {};
    if (!common.empty() && common != *line) return {};
    common = *line;
  }
  return common;
}

std::string summary(const RankFailure& failure, bool several_nodes) {
  if (failure.kind == RankFailure::Kind::kStopped) return describe(failure, several_nodes);
  if (failure.kind == RankFailure::Kind::kLost)
    return fmt::format("levin: the run failed: node {} ({}) was lost", failure.node, failure.host);
  if (failure.kind == RankFailure::Kind::kLeftEarly)
    return fmt::format("levin: the run failed: {} left first, with exit status 0, while other ranks needed it",
                       who(failure, several_nodes));
  // The last line that says something; an error that wraps over several is told above.
  const auto said = std::find_if(failure.last_lines.rbegin(), failure.last_lines.rend(),
                                 [](const auto& line) { return line.find_first_not_of(" \t\r") != std::string::npos; });
  return fmt::format("levin: the run failed: {} failed first: it {}{}", who(failure, several_nodes), how(failure),
                     said == failure.last_lines.rend() ? "" : ": " + *said);
}

std::string describe(const RankFailure& failure, bool several_nodes) {
  const auto node = fmt::format("node {} ({})", failure.node, failure.host);
  if (failure.kind == RankFailure::Kind::kStopped)
    return fmt::format("levin: {}stopped by {}", several_nodes ? node + " was " : "",
                       signal_name(failure.status.signal));
  if (failure.kind == RankFailure::Kind::kLost)
    return fmt::format("levin: {} does not answer any more; its launcher or its machine has died", node);
  if (failure.kind == RankFailure::Kind::kLeftEarly)
    return fmt::format("levin: {} ended with exit status 0 while other ranks needed it", who(failure, several_nodes));
  auto text = fmt::format("levin: {} {}", who(failure, several_nodes), how(failure));
  if (!failure.last_lines.empty()) text += "; its last lines:";
  for (const auto& line : failure.last_lines) text += "\n    " + line;
  return text;
}

}  // namespace levin::detail
