#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

constexpr int kDefaultPort = 12910;

/// Started by torchrun, or by Levin's launcher, which gives its ranks the same variables.
class TorchElasticEnvironment : public Environment {
 public:
  explicit TorchElasticEnvironment(const ReadVariable& read) : variables_(read, "torchelastic") {}

  std::string name() const override { return "torchelastic"; }
  bool creates_processes_externally() const override { return true; }

  Placement placement(const WorldAsked& asked) const override {
    Placement place;
    place.world_size = variables_.required_number("WORLD_SIZE");
    variables_.check_world("WORLD_SIZE", place.world_size, asked);
    const auto rank = variables_.number({"RANK", "GLOBAL_RANK"});
    if (!rank) variables_.fail("RANK is not set");
    place.global_rank = *rank;
    variables_.check_rank("RANK", place.global_rank, "WORLD_SIZE", place.world_size);
    const int nodes = variables_.number("GROUP_WORLD_SIZE").value_or(std::max(asked.num_nodes, 1));
    if (nodes < 1) variables_.fail("GROUP_WORLD_SIZE=0 must be at least 1");
    place.local_world_size = variables_.number("LOCAL_WORLD_SIZE").value_or(std::max(place.world_size / nodes, 1));
    place.local_rank = variables_.required_number("LOCAL_RANK");
    variables_.check_rank("LOCAL_RANK", place.local_rank, "LOCAL_WORLD_SIZE", place.local_world_size);
    place.node_rank = variables_.number({"GROUP_RANK", "NODE_RANK"}).value_or(0);

    const bool several_nodes = nodes > 1 || place.local_world_size < place.world_size;
    if (const auto address = variables_.text("MASTER_ADDR")) {
      place.master_addr = *address;
    } else if (several_nodes) {
      variables_.fail("MASTER_ADDR is not set; with several nodes it must name the machine of rank 0");
    } else {
      warn_once("MASTER_ADDR is not set; using 127.0.0.1");
    }
    if (const auto port = variables_.port("MASTER_PORT")) {
      place.master_port = *port;
    } else {
      place.master_port = kDefaultPort;
      warn_once(fmt::format("MASTER_PORT is not set; using {}", kDefaultPort));
    }
    place.store_is_hosted = variables_.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    place.attempt = variables_.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
    return place;
  }

 private:
  Variables variables_;
};

}  // namespace

bool found_torchelastic(const ReadVariable& read) {
  return Variables(read, "torchelastic").has("TORCHELASTIC_RUN_ID");
}

std::unique_ptr<Environment> make_torchelastic(const ReadVariable& read) {
  return std::make_unique<TorchElasticEnvironment>(read);
}

}  // namespace levin::detail
