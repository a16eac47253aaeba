#include <fmt/format.h>
#include <unistd.h>

#include "levin/environments/variables.h"
#include "levin/environments/variants.h"

namespace levin::detail {
namespace {

// Open MPI sets the first of each, MPICH and Intel MPI the second; the third comes with any PMIx server.
std::optional<int> rank(const Variables& variables) {
  if (auto value = variables.number("OMPI_COMM_WORLD_RANK")) return value;
  if (auto value = variables.number("PMI_RANK")) return value;
  return variables.number("PMIX_RANK");
}

std::optional<int> size(const Variables& variables) {
  if (auto value = variables.number("OMPI_COMM_WORLD_SIZE")) return value;
  return variables.number("PMI_SIZE");
}

// FNV-1a: every rank must compute the same, so std::hash, which may differ between programs, is no choice.
uint32_t hash(std::string_view text) {
  uint32_t value = 2166136261u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 16777619u;
  return value;
}

/// Started by mpirun or mpiexec. Only the variables are read: no MPI library is linked.
class MpiEnvironment : public Environment {
 public:
  MpiEnvironment(const ReadVariable& read, int parent)
      : variables_(read, "mpi"), parent_(parent != 0 ? parent : static_cast<int>(::getppid())) {}

  std::string name() const override { return "mpi"; }
  bool creates_processes_externally() const override { return true; }

  Placement placement(const WorldAsked& asked) const override {
    const auto world = size(variables_);
    if (!world) variables_.fail("neither OMPI_COMM_WORLD_SIZE nor PMI_SIZE is set; start the program with mpirun");
    const auto mine = rank(variables_);
    if (!mine)
      variables_.fail("none of OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK is set; start the program with mpirun");
    const auto local = first({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"});
    const auto local_size = first({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
    if (!local || !local_size)
      variables_.fail(
          "the place on the host is not known: neither OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE nor "
          "MPI_LOCALRANKID and MPI_LOCALNRANKS are set");
    Placement place;
    place.world_size = *world;
    place.global_rank = *mine;
    place.local_rank = *local;
    place.local_world_size = *local_size;
    variables_.check_world("MPI's world size", place.world_size, asked);
    variables_.check_rank("MPI's rank", place.global_rank, "MPI's world size", place.world_size);
    variables_.check_rank("MPI's local rank", place.local_rank, "MPI's local size", place.local_world_size);
    place.node_rank = node_rank(place);
    const bool one_host = place.local_world_size == place.world_size;
    if (const auto address = variables_.text("MASTER_ADDR")) {
      place.master_addr = *address;
    } else if (!one_host) {
      variables_.fail(
          "MASTER_ADDR is not set; with several hosts it must name the one of rank 0 (mpirun -x MASTER_ADDR=HOST)");
    }
    if (const auto port = variables_.port("MASTER_PORT")) {
      place.master_port = *port;
    } else if (one_host) {
      place.master_port = job_port();
    } else {
      variables_.fail(
          "MASTER_PORT is not set; with several hosts all ranks must be told one (mpirun -x MASTER_PORT=29500)");
    }
    return place;
  }

 private:
  std::optional<int> first(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (auto value = variables_.number(name)) return value;
    return std::nullopt;
  }

  // MPI numbers ranks, not hosts. By default they fill one host after the other; NODE_RANK is for other mappings.
  int node_rank(const Placement& place) const {
    if (const auto given = variables_.number({"NODE_RANK", "GROUP_RANK"})) return *given;
    return place.global_rank / place.local_world_size;
  }

  // Below the range from which the kernel picks ports automatically.
  int job_port() const {
    std::string job = std::to_string(parent_);
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT"}) {
      if (const auto value = variables_.text(name)) {
        job = *value;
        break;
      }
    }
    return 20000 + static_cast<int>(hash(job) % 10000);
  }

  Variables variables_;
  int parent_;
};

}  // namespace

bool found_mpi(const ReadVariable& read) {
  const Variables variables(read, "mpi");
  return size(variables).value_or(1) > 1 && rank(variables);
}

std::unique_ptr<Environment> make_mpi(const ReadVariable& read, int parent) {
  return std::make_unique<MpiEnvironment>(read, parent);
}

}  // namespace levin::detail
