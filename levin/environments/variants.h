#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "levin/environments/environment.h"

// What detection knows of each kind of environment: a test for its variables, and how to make one. One file each.
namespace levin::detail {

bool found_torchelastic(const ReadVariable& read);
std::unique_ptr<Environment> make_torchelastic(const ReadVariable& read);

bool found_slurm(const ReadVariable& read);
std::unique_ptr<Environment> make_slurm(const ReadVariable& read);
/// The first host of a compressed list: "host[5-9,1]" is host5, "a[1-2]b[3,4],c" is a1b3.
std::string first_slurm_host(std::string_view list);

bool found_lsf(const ReadVariable& read);
/// `hostname` is looked up in the rank file; empty means this machine's.
std::unique_ptr<Environment> make_lsf(const ReadVariable& read, std::string hostname = {});

bool found_mpi(const ReadVariable& read);
/// `parent` tells jobs of one machine apart when MPI gives them no name; 0 means this process's parent.
std::unique_ptr<Environment> make_mpi(const ReadVariable& read, int parent = 0);

std::unique_ptr<Environment> make_kubeflow(const ReadVariable& read);
std::unique_ptr<Environment> make_levin(const ReadVariable& read);

}  // namespace levin::detail
