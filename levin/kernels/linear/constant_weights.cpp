#include "levin/kernels/linear/constant_weights.h"

#include <utility>

namespace levin::kernels {
namespace {

thread_local bool constant_here = false;

}  // namespace

ConstantWeights::ConstantWeights() : before_(std::exchange(constant_here, true)) {}
ConstantWeights::~ConstantWeights() {
  constant_here = before_;
}
bool ConstantWeights::here() {
  return constant_here;
}

}  // namespace levin::kernels
