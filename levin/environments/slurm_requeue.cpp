#include "levin/environments/slurm_requeue.h"

#include <algorithm>

namespace levin {
namespace {

bool is_number(const std::optional<std::string>& text) {
  return text && !text->empty() &&
         std::all_of(text->begin(), text->end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::optional<std::string> slurm_job_to_requeue(const ReadVariable& read) {
  const auto name = read("SLURM_JOB_NAME");
  if (!read("SLURM_NTASKS") || name == "bash" || name == "interactive") return {};
  const auto array = read("SLURM_ARRAY_JOB_ID"), task = read("SLURM_ARRAY_TASK_ID");
  if (is_number(array) && is_number(task)) return *array + "_" + *task;
  const auto job = read("SLURM_JOB_ID");
  return is_number(job) ? job : std::nullopt;
}

}  // namespace levin
