#include "levin/strategies/comm_hooks.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

/// Sends gradients in a 16-bit type. Divided before the sum, so that fp16 does not overflow where the mean does not.
class CompressHook : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::ScalarType dtype)
      : CppCommHookInterface(std::move(group)), dtype_(dtype) {}

  Future runHook(c10d::GradBucket& bucket) override {
    const auto buffer = bucket.getBuffer();
    auto compressed = buffer.to(dtype_).div_(state_->getSize());
    std::vector<Tensor> tensors{compressed};
    auto sent = state_->allreduce(tensors)->getFuture();
    return sent->then(
        [buffer, compressed](c10::ivalue::Future& future) {
          if (future.hasError()) std::rethrow_exception(future.exception_ptr());
          auto target = buffer;
          target.copy_(compressed);
          return c10::IValue(target);
        },
        c10::TensorType::get());
  }

 private:
  c10::ScalarType dtype_;
};

}  // namespace

std::vector<std::string> known_comm_hooks() {
  return {"", "fp16", "bf16", "powersgd"};
}

void detail::check_comm_hook(const DdpOptions& options) {
  const auto known = known_comm_hooks();
  if (std::find(known.begin(), known.end(), options.comm_hook) == known.end())
    fail_unknown("ddp", "comm_hook", options.comm_hook, known);
  if (options.comm_hook != "powersgd") return;
  LEVIN_CHECK(options.powersgd_rank >= 1, "[ddp] powersgd_rank is ", options.powersgd_rank, "; it must be at least 1");
  LEVIN_CHECK(options.powersgd_start_iter >= 2, "[ddp] powersgd_start_iter is ", options.powersgd_start_iter,
              "; it must be at least 2");
  LEVIN_CHECK(options.powersgd_min_compression_rate > 0, "[ddp] powersgd_min_compression_rate is ",
              options.powersgd_min_compression_rate, "; it must be more than 0");
}

std::unique_ptr<c10d::CommHookInterface> detail::make_comm_hook(const DdpOptions& options, Collective& group) {
  if (options.comm_hook == "fp16") return std::make_unique<CompressHook>(group.process_group(), at::kHalf);
  if (options.comm_hook == "bf16") return std::make_unique<CompressHook>(group.process_group(), at::kBFloat16);
  if (options.comm_hook == "powersgd") return make_powersgd_hook(options, group);
  return nullptr;
}

}  // namespace levin
