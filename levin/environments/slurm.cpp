#include <cctype>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

constexpr int kDefaultPort = 12910;

/// Started by srun: one task of a job step is one rank.
class SlurmEnvironment : public Environment {
 public:
  explicit SlurmEnvironment(const ReadVariable& read) : variables_(read, "slurm") {}

  std::string name() const override { return "slurm"; }
  bool creates_processes_externally() const override { return true; }

  Placement placement(const WorldAsked& asked) const override {
    Placement place;
    place.world_size = variables_.required_number("SLURM_NTASKS");
    const auto per_node = variables_.number("SLURM_NTASKS_PER_NODE");
    const auto nodes = variables_.number("SLURM_NNODES");
    if (place.world_size > 1 && !per_node)
      variables_.fail(
          fmt::format("SLURM_NTASKS={}, but SLURM_NTASKS_PER_NODE is not set; start the job with "
                      "--ntasks-per-node=DEVICES instead of --ntasks",
                      place.world_size));
    if (per_node && asked.devices != 0 && *per_node != asked.devices)
      variables_.fail(fmt::format("SLURM_NTASKS_PER_NODE={}, but devices={} was asked for; make them equal", *per_node,
                                  asked.devices));
    if (nodes && asked.num_nodes != 0 && *nodes != asked.num_nodes)
      variables_.fail(
          fmt::format("SLURM_NNODES={}, but num_nodes={} was asked for; make them equal", *nodes, asked.num_nodes));
    variables_.check_world("SLURM_NTASKS", place.world_size, asked);

    place.global_rank = variables_.required_number("SLURM_PROCID");
    variables_.check_rank("SLURM_PROCID", place.global_rank, "SLURM_NTASKS", place.world_size);
    place.local_world_size = std::min(per_node.value_or(1), place.world_size);
    place.local_rank = variables_.required_number("SLURM_LOCALID");
    variables_.check_rank("SLURM_LOCALID", place.local_rank, "SLURM_NTASKS_PER_NODE", place.local_world_size);
    place.node_rank = variables_.required_number("SLURM_NODEID");
    place.master_addr = address();
    place.master_port = port();
    place.attempt = variables_.number("SLURM_RESTART_COUNT").value_or(0);
    return place;
  }

 private:
  std::string address() const {
    if (const auto given = variables_.text("MASTER_ADDR")) return *given;
    const auto list = variables_.text("SLURM_NODELIST");
    if (!list) return "127.0.0.1";
    const auto host = first_slurm_host(*list);
    if (host.empty()) variables_.fail(fmt::format("SLURM_NODELIST=\"{}\" is not a list of hosts", *list));
    return host;
  }

  // The last four digits of the job's number keep jobs that share a node apart.
  int port() const {
    if (const auto given = variables_.port("MASTER_PORT")) return *given;
    const auto job = variables_.text("SLURM_JOB_ID");
    if (!job) return kDefaultPort;
    int digits = 0;
    for (const char c : job->substr(job->size() > 4 ? job->size() - 4 : 0)) {
      if (!std::isdigit(static_cast<unsigned char>(c)))
        variables_.fail(fmt::format("SLURM_JOB_ID=\"{}\" is not a number", *job));
      digits = digits * 10 + (c - '0');
    }
    return 15000 + digits;
  }

  Variables variables_;
};

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ',' && list[i] != ' '; ++i) {
    if (list[i] != '[') {
      host.push_back(list[i]);
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string_view::npos) return {};
    const auto inside = list.substr(i + 1, close - i - 1);
    host.append(inside.substr(0, inside.find_first_of(",- ")));
    i = close;
  }
  return host;
}

bool found_slurm(const ReadVariable& read) {
  // In an interactive shell of a job the variables describe the job, not this process.
  const Variables variables(read, "slurm");
  const auto job = variables.text("SLURM_JOB_NAME");
  return variables.has("SLURM_NTASKS") && job != "bash" && job != "interactive";
}

std::unique_ptr<Environment> make_slurm(const ReadVariable& read) {
  return std::make_unique<SlurmEnvironment>(read);
}

}  // namespace levin::detail
