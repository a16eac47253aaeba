#pragma once

#include <functional>
#include <utility>

#include "levin/nn/interceptor.h"

namespace levin::detail {

/// Tells that a checkpointed unit has its activations again. To be attached with Order::kRecompute.
class AfterRecompute final : public Interceptor {
 public:
  explicit AfterRecompute(std::function<void()> tell) : tell_(std::move(tell)) {}

  void around(Call& call) override {
    if (call.phase() != Phase::kRecompute) return call.proceed();
    try {
      call.proceed();
    } catch (...) {  // also when all activations are there, and the rest is left out
      tell_();
      throw;
    }
    tell_();
  }
  bool sees_result() const override { return false; }

 private:
  std::function<void()> tell_;
};

}  // namespace levin::detail
