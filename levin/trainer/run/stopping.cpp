// Requests to stop, and signals, agreed on by the ranks.
#include "levin/trainer/run/stopping.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/environments/slurm_requeue.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

[[noreturn]] void end_by_signal(Run& run, int signal) {
  const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
  const bool sane = run.state.fitting && run.state.stage != Stage::kSanity;
  auto where =
      sane ? concat("[trainer] ", name, " in epoch ", run.state.progress.epoch, " after batch ",
                    run.state.progress.batch)
           : concat("[trainer] ", name, " in ", run.state.fitting ? "the sanity check" : stage_name(run.state.stage));
  const bool training = sane && run.plan.fast_dev_run == 0 && !run.plan.barebones;
  if (training && (run.plan.checkpoints || signal != SIGINT)) {
    const auto path = signal == SIGINT ? interrupted_path(run.hooks.callbacks(), run.context)
                                       : hpc_path(run, newest_hpc_number(run.plan.root_dir).value_or(0) + 1);
    run.state.stage = Stage::kTrain;
    if (write_checkpoint(run, path, /*weights_only=*/false))
      where += concat("; resume from there with ckpt_path \"", path.string(), "\"");
    if (signal == SIGUSR1)
      if (const auto job = slurm_job_to_requeue(); job && run.fabric->is_global_zero()) {
        const int status = std::system(("scontrol requeue " + *job).c_str());
        where +=
            status == 0 ? concat("; job ", *job, " is queued again") : concat("; scontrol requeue ", *job, " failed");
      }
  }
  SignalFlags::clear();
  throw Interrupted(where, signal);
}

}  // namespace

bool steps_are_done(const Run& run) {
  return run.plan.max_steps >= 0 && run.state.progress.global_step >= run.plan.max_steps;
}

bool can_stop_early(const Run& run) {
  const auto& progress = run.state.progress;
  // Inside the closing of an epoch that epoch counts.
  const int64_t epochs = progress.epoch + (progress.closing_epoch ? 1 : 0);
  return epochs >= run.plan.min_epochs && progress.global_step >= run.plan.min_steps;
}

bool stops_now(const Run& run) {
  return run.state.should_stop && can_stop_early(run);
}

void stop(Run& run, std::string_view reason) {
  if (std::exchange(run.state.should_stop, true)) return;
  if (!can_stop_early(run) && !run.plan.barebones)
    log_info(concat("[trainer] asked to stop (", reason, "), which waits for min_epochs ", run.plan.min_epochs,
                    " and min_steps ", run.plan.min_steps));
}

void request_stop(Run& run, std::string_view reason) {
  if (run.fabric->world_size() == 1)
    stop(run, reason);
  else
    run.state.stop_requested = true;
}

void check_stop_requests(Run& run) {
  if (run.state.window_open) return;
  if (run.abandoned.exchange(false)) {
    if (run.state.fitting)
      log_warning(concat("[trainer] the Trainer was destroyed during its fit (epoch ", run.state.progress.epoch,
                         ", batch ", run.state.progress.batch, "), which ends here; keep it until fit returns"));
    else
      log_warning("[trainer] the Trainer was destroyed while it was at work; keep it until the call returns");
    request_stop(run, "its Trainer was destroyed");
  }
  if (run.fabric->world_size() == 1 || !run.state.fitting) {
    if (const int signal = SignalFlags::pending(); signal != 0 && run.signals) [[unlikely]]
      end_by_signal(run, signal);
    return;
  }
  auto& vote = run.state.stage == Stage::kTrain ? run.state.votes.train : run.state.votes.eval;
  if (--vote.batches_left > 0) return;
  // A vote costs a collective, so it is taken about twice a second. How many batches that is, the slowest rank says; it
  // at most doubles each time, since first batches say little.
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(vote.last, now)).count();
  const double wanted = 0.5 * static_cast<double>(vote.period) / std::max(seconds, 1e-9);
  const auto period = std::clamp<int64_t>(static_cast<int64_t>(std::min(wanted, 1e6)), 1, 2 * vote.period);
  auto votes = at::tensor({static_cast<int64_t>(run.state.stop_requested), static_cast<int64_t>(SignalFlags::pending()),
                           -period},
                          at::kLong)
                   .to(run.fabric->device());
  votes = run.fabric->all_reduce(votes, "max").cpu();
  const auto* results = votes.const_data_ptr<int64_t>();
  if (results[1] != 0) end_by_signal(run, static_cast<int>(results[1]));
  if (results[0] != 0) stop(run, "asked for by a rank");
  vote.period = vote.batches_left = -results[2];
}

void check_late_signal(Run& run, bool together) {
  int64_t signal = SignalFlags::pending();
  if (together && run.fabric->world_size() > 1) {
    const auto vote = at::tensor({signal}, at::kLong).to(run.fabric->device());
    signal = run.fabric->all_reduce(vote, "max").item<int64_t>();
  }
  SignalFlags::clear();
  if (signal == SIGINT || signal == SIGTERM)
    throw Interrupted(concat("[trainer] ", signal == SIGINT ? "Ctrl-C" : "SIGTERM", " at the end of the run"),
                      static_cast<int>(signal));
}

}  // namespace levin::detail
