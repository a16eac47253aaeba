#include "levin/trainer/loss_watch.h"

#include <cmath>
#include <cstdio>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/fabric/fabric.h"
#include "levin/trainer/cpu_number.h"

namespace levin::detail {
void LossWatch::add(const at::Tensor& loss, int64_t epoch, int64_t batch) {
  ++steps_;
  losses_ += loss.defined();
  if (found_) return;
  const bool is_number = loss.defined() && loss.numel() == 1 && !loss.is_meta() && !loss.is_complex();
  // Every rank must add as often, also one whose step returned nothing.
  const bool several = fabric_ && fabric_->world_size() > 1;
  const auto place = fabric_ ? fabric_->device() : c10::Device(c10::kCPU);
  if (several && (shares_ || !place.is_cpu())) {
    const auto value = is_number ? loss.detach().to(place) : at::zeros({}, at::TensorOptions().device(place));
    if (const auto bad = late_.add(value.to(at::kFloat), batch)) note(epoch, *bad);
    return;
  }
  if (!is_number) return;
  if (loss.is_cpu()) {
    if (!std::isfinite(cpu_number(loss))) note(epoch, batch);
  } else if (const auto bad = late_.add(loss, batch)) {
    note(epoch, *bad);
  }
}

void LossWatch::forget() {
  found_.reset();
  late_ = LateFlags(fabric_);
}

void LossWatch::end_epoch(int64_t epoch, bool trains) {
  if (const auto bad = late_.finish(); bad && !found_) note(epoch, *bad);
  if (trains && steps_ > 0 && losses_ == 0 && !warned_none_) {
    warned_none_ = true;
    log_warning(concat("[trainer] training_step returned no loss in any of the ", steps_, " batches of epoch ", epoch,
                       ": nothing was trained; return the loss, or set automatic_optimization = false"));
  }
  steps_ = losses_ = 0;
}

void LossWatch::note(int64_t epoch, int64_t batch) {
  found_ = {epoch, batch};
  if (!warns_) return;
  const int rank = fabric_ ? fabric_->global_rank() : 0;
  const auto line = concat("[trainer] the loss is nan or inf in epoch ", epoch, ", batch ", batch,
                           ", and may be so in later ones; detect_anomaly = true finds the operation that gave it");
  // The log has the lines of rank 0 alone, and other ranks have other batches.
  if (rank == 0)
    log_warning(line);
  else
    std::fprintf(stderr, "levin: warning: rank %d: %s\n", rank, line.c_str());
}

}  // namespace levin::detail
