#pragma once

#include <memory>

namespace levin::detail {

/// While it lives, arithmetic of meta tensors of different dtypes takes on this thread what it takes on the CPU: there
/// every operand is cast as a whole to the dtype in which the operator computes, and a result that is changed in place
/// is cast back. (CUDA casts number by number and needs nothing.)
class MetaPromotion {
 public:
  MetaPromotion();
  ~MetaPromotion();
  MetaPromotion(const MetaPromotion&) = delete;
  MetaPromotion& operator=(const MetaPromotion&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::detail
