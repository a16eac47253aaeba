#pragma once

#include <optional>
#include <string>

#include "levin/environments/environment.h"

namespace levin {

/// What `scontrol requeue` takes to start this process's SLURM job again: the job, or the task of a job array
/// ("12345_2"). Nothing outside of a batch job.
std::optional<std::string> slurm_job_to_requeue(const ReadVariable& read = read_process_variable);

}  // namespace levin
