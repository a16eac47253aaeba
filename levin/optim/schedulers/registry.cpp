#include "levin/optim/schedulers/registry.h"

#include "levin/optim/schedulers.h"

namespace levin::optim {

const std::vector<SchedulerClass>& scheduler_classes() {
  static const std::vector<SchedulerClass> classes{
      StepLR::describe(),
      MultiStepLR::describe(),
      ConstantLR::describe(),
      LinearLR::describe(),
      ExponentialLR::describe(),
      PolynomialLR::describe(),
      CosineAnnealingLR::describe(),
      CosineAnnealingWarmRestarts::describe(),
      OneCycleLR::describe(),
      describe_linear_warmup_cosine(),
      ReduceLROnPlateau::describe(),
  };
  return classes;
}

}  // namespace levin::optim
