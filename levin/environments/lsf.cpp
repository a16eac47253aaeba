#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "levin/core/host.h"
#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

constexpr std::array kNeeded{"LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE"};

std::string_view short_name(std::string_view host) {
  return host.substr(0, host.find('.'));
}

/// Started by jsrun in a job of IBM LSF.
class LsfEnvironment : public Environment {
 public:
  LsfEnvironment(const ReadVariable& read, std::string hostname)
      : variables_(read, "lsf"), hostname_(hostname.empty() ? host_name() : std::move(hostname)) {}

  std::string name() const override { return "lsf"; }
  bool creates_processes_externally() const override { return true; }

  Placement placement(const WorldAsked& asked) const override {
    Placement place;
    place.world_size = variables_.required_number("JSM_NAMESPACE_SIZE");
    variables_.check_world("JSM_NAMESPACE_SIZE", place.world_size, asked);
    place.global_rank = variables_.required_number("JSM_NAMESPACE_RANK");
    variables_.check_rank("JSM_NAMESPACE_RANK", place.global_rank, "JSM_NAMESPACE_SIZE", place.world_size);
    const auto ranks = hosts_of_ranks();
    std::vector<std::string> nodes;
    for (const auto& host : ranks)
      if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
    const auto mine = std::find_if(nodes.begin(), nodes.end(),
                                   [&](const auto& host) { return short_name(host) == short_name(hostname_); });
    if (mine == nodes.end())
      variables_.fail(fmt::format("this host, \"{}\", is not in the file that LSB_DJOB_RANKFILE names (hosts: {})",
                                  hostname_, fmt::join(nodes, ", ")));
    place.node_rank = static_cast<int>(mine - nodes.begin());
    place.local_world_size = variables_.number("JSM_NAMESPACE_LOCAL_SIZE")
                                 .value_or(static_cast<int>(std::count(ranks.begin(), ranks.end(), *mine)));
    place.local_rank = variables_.required_number("JSM_NAMESPACE_LOCAL_RANK");
    variables_.check_rank("JSM_NAMESPACE_LOCAL_RANK", place.local_rank, "the number of ranks on this host",
                          place.local_world_size);
    place.master_addr = variables_.text("MASTER_ADDR").value_or(nodes.front());
    place.master_port = variables_.port("MASTER_PORT").value_or(10000 + variables_.required_number("LSB_JOBID") % 1000);
    return place;
  }

 private:
  /// The host of each rank. The file's first line is the host that submitted the job and runs no rank.
  std::vector<std::string> hosts_of_ranks() const {
    const auto path = variables_.required_text("LSB_DJOB_RANKFILE");
    std::ifstream file(path);
    if (!file) variables_.fail(fmt::format("LSB_DJOB_RANKFILE=\"{}\" cannot be read", path));
    std::vector<std::string> hosts;
    for (std::string host; file >> host;) hosts.push_back(host);
    if (hosts.size() < 2) variables_.fail(fmt::format("LSB_DJOB_RANKFILE=\"{}\" names no host for the ranks", path));
    hosts.erase(hosts.begin());
    return hosts;
  }

  Variables variables_;
  std::string hostname_;
};

}  // namespace

bool found_lsf(const ReadVariable& read) {
  const Variables variables(read, "lsf");
  return std::all_of(kNeeded.begin(), kNeeded.end(), [&](const char* name) { return variables.has(name); });
}

std::unique_ptr<Environment> make_lsf(const ReadVariable& read, std::string hostname) {
  return std::make_unique<LsfEnvironment>(read, std::move(hostname));
}

}  // namespace levin::detail
