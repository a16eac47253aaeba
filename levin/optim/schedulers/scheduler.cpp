#include "levin/optim/schedulers/scheduler.h"

#include "levin/core/error.h"

namespace levin {

void SchedulerImpl::step_metric(double metric) {
  levin::detail::fail(levin::detail::concat("[", name(), ".step] a metric (", metric,
                                            ") is given, but only ReduceLROnPlateau follows one; call step()"));
}

void Scheduler::fail_empty() {
  levin::detail::fail(
      "[scheduler] this handle is empty; assign a scheduler to it first, for example levin::optim::StepLR(opt, {...})");
}

}  // namespace levin
