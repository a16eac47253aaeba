#include "levin/optim/registry.h"

#include "levin/optim/optim.h"

namespace levin::optim {

const std::vector<OptimizerClass>& optimizer_classes() {
  static const std::vector<OptimizerClass> classes{
      AdamW::describe(),   Adam::describe(),      AdamW8bit::describe(), Adam8bit::describe(), SGD::describe(),
      Adagrad::describe(), Adafactor::describe(), Lion::describe(),      Lamb::describe(),
  };
  return classes;
}

}  // namespace levin::optim
