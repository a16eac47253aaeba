#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/callbacks/monitor.h"
#include "levin/trainer/context.h"

namespace levin {

OnExceptionCheckpoint::OnExceptionCheckpoint(OnExceptionCheckpointOptions options)
    : options_(std::move(options)), dirpath_(options_.dirpath) {
  LEVIN_CHECK(!options_.filename.empty(), "[OnExceptionCheckpoint] filename is empty; \"on_exception\" would do");
}

void OnExceptionCheckpoint::setup(TrainerContext& run, std::string_view) {
  failed_ = false;
  if (!options_.dirpath.empty()) return;
  const auto root = run.loggers().empty() ? run.plan().root_dir : run.log_dir();
  dirpath_ = run.fabric().broadcast((root / "checkpoints").string());
}

void OnExceptionCheckpoint::on_exception(TrainerContext& run, const std::exception& error) {
  failed_ = true;
  if (!detail::can_save_on(error, run)) return;
  run.save_checkpoint(ckpt_path(), /*weights_only=*/false, [this] {
    log_info(detail::concat("the run ends by an exception; its state was kept: ", ckpt_path().string()));
  });
}

void OnExceptionCheckpoint::teardown(TrainerContext& run, std::string_view stage) {
  if (stage != "fit" || failed_ || run.plan().fast_dev_run > 0 || !run.fabric().is_global_zero()) return;
  if (const auto* format = find_checkpoint_format(ckpt_path(), run.fabric().checkpoint_format()))
    format->remove(ckpt_path());
}

}  // namespace levin
