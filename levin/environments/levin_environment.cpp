#include <algorithm>

#include <fmt/format.h>

#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

/// Started by hand: alone, once per node (the launcher makes the ranks), or once per rank with RANK and WORLD_SIZE.
class LevinEnvironment : public Environment {
 public:
  explicit LevinEnvironment(const ReadVariable& read) : variables_(read, "levin") {}

  std::string name() const override { return "levin"; }

  bool creates_processes_externally() const override {
    return variables_.has("LOCAL_RANK") || variables_.has("RANK") || variables_.has("GLOBAL_RANK");
  }

  Placement placement(const WorldAsked& asked) const override {
    auto place = creates_processes_externally() ? hand_started(asked) : to_be_launched(asked);
    find_store(place, asked);
    return place;
  }

 private:
  /// This process is a rank already.
  Placement hand_started(const WorldAsked& asked) const {
    const int nodes = std::max(asked.num_nodes, 1);
    const auto rank = variables_.number({"RANK", "GLOBAL_RANK"});
    const auto local_rank = variables_.number("LOCAL_RANK");
    const auto world = variables_.number("WORLD_SIZE");
    if (!world && (rank || asked.devices == 0)) variables_.fail("WORLD_SIZE is not set, though a rank is");
    Placement place;
    place.world_size = world.value_or(asked.devices * nodes);
    variables_.check_world("WORLD_SIZE", place.world_size, asked);
    place.local_world_size = variables_.number("LOCAL_WORLD_SIZE").value_or(std::max(place.world_size / nodes, 1));
    if (place.local_world_size < 1 || place.local_world_size > place.world_size)
      variables_.fail(
          fmt::format("LOCAL_WORLD_SIZE={} does not fit WORLD_SIZE={}", place.local_world_size, place.world_size));
    const auto node = node_rank();
    place.node_rank = node.value_or(rank.value_or(0) / place.local_world_size);
    if (!rank && !node && nodes > 1)
      variables_.fail("NODE_RANK is not set; with several nodes each must be told its own");
    variables_.check_rank("NODE_RANK", place.node_rank, "the number of nodes",
                          (place.world_size + place.local_world_size - 1) / place.local_world_size);
    place.local_rank = local_rank.value_or(rank.value_or(0) % place.local_world_size);
    variables_.check_rank("LOCAL_RANK", place.local_rank, "LOCAL_WORLD_SIZE", place.local_world_size);
    place.global_rank = rank.value_or(place.node_rank * place.local_world_size + place.local_rank);
    variables_.check_rank("RANK", place.global_rank, "WORLD_SIZE", place.world_size);
    return place;
  }

  /// This process is the first of its node; the launcher will start the ranks.
  Placement to_be_launched(const WorldAsked& asked) const {
    const int nodes = std::max(asked.num_nodes, 1);
    Placement place;
    place.local_world_size = std::max(asked.devices, 1);
    place.world_size = place.local_world_size * nodes;
    if (const auto world = variables_.number("WORLD_SIZE"); world && *world != place.world_size)
      variables_.fail(
          fmt::format("WORLD_SIZE={}, but devices x num_nodes = {} x {} = {} processes were asked for; for "
                      "ranks started by hand set RANK as well",
                      *world, place.local_world_size, nodes, place.world_size));
    const auto node = node_rank();
    if (!node && nodes > 1) variables_.fail("NODE_RANK is not set; with several nodes each must be told its own");
    place.node_rank = node.value_or(0);
    variables_.check_rank("NODE_RANK", place.node_rank, "num_nodes", nodes);
    place.global_rank = place.node_rank * place.local_world_size;
    return place;
  }

  void find_store(Placement& place, const WorldAsked& asked) const {
    const bool several_nodes = asked.num_nodes > 1 || place.local_world_size < place.world_size;
    if (const auto address = variables_.text("MASTER_ADDR")) {
      place.master_addr = *address;
    } else if (several_nodes) {
      variables_.fail("MASTER_ADDR is not set; with several nodes it must name the machine of rank 0");
    }
    place.master_port = variables_.port("MASTER_PORT").value_or(0);
    // One process needs no store, and the launcher picks a free port for ranks of one node.
    const bool must_agree = several_nodes || (creates_processes_externally() && place.world_size > 1);
    if (must_agree && place.master_port == 0)
      variables_.fail("MASTER_PORT is not set; all ranks must be told the same free port of MASTER_ADDR");
  }

  std::optional<int> node_rank() const { return variables_.number({"NODE_RANK", "GROUP_RANK"}); }

  Variables variables_;
};

}  // namespace

std::unique_ptr<Environment> make_levin(const ReadVariable& read) {
  return std::make_unique<LevinEnvironment>(read);
}

}  // namespace levin::detail
