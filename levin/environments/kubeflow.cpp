#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

/// A PyTorchJob of Kubeflow: every pod is a node with one process. Its variables are nobody's own, so it is chosen by
/// hand.
class KubeflowEnvironment : public Environment {
 public:
  explicit KubeflowEnvironment(const ReadVariable& read) : variables_(read, "kubeflow") {}

  std::string name() const override { return "kubeflow"; }
  bool creates_processes_externally() const override { return true; }

  Placement placement(const WorldAsked& asked) const override {
    Placement place;
    place.world_size = variables_.required_number("WORLD_SIZE");
    variables_.check_world("WORLD_SIZE", place.world_size, asked);
    place.global_rank = variables_.required_number("RANK");
    variables_.check_rank("RANK", place.global_rank, "WORLD_SIZE", place.world_size);
    place.node_rank = place.global_rank;
    place.master_addr = variables_.required_text("MASTER_ADDR");
    const auto port = variables_.port("MASTER_PORT");
    if (!port) variables_.fail("MASTER_PORT is not set");
    place.master_port = *port;
    return place;
  }

 private:
  Variables variables_;
};

}  // namespace

std::unique_ptr<Environment> make_kubeflow(const ReadVariable& read) {
  return std::make_unique<KubeflowEnvironment>(read);
}

}  // namespace levin::detail
