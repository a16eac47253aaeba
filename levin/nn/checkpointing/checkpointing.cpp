#include "levin/nn/checkpointing/checkpointing.h"

#include "levin/core/error.h"
#include "levin/kernels/linear/matmul.h"
#include "levin/nn/checkpointing/checkpointing_frame.h"

namespace levin {
namespace {

class Checkpointing final : public Interceptor {
 public:
  explicit Checkpointing(const CheckpointOptions& options) {
    auto settings = std::make_shared<detail::CheckpointSettings>();
    settings->options = options;
    if (!options.keep_results_of.empty())
      settings->operators = std::make_shared<detail::KeptOperators>(options.keep_results_of);
    if (options.cpu_offload) settings->host = std::make_shared<detail::HostCopies>(options.offload);
    settings_ = std::move(settings);
  }
  void around(Call& call) override { detail::CheckpointFrame::run(call, settings_); }

 private:
  std::shared_ptr<const detail::CheckpointSettings> settings_;
};

/// Right inside of checkpointing, so that it is a part of the replay.
class RestoreInputs final : public Interceptor {
 public:
  void around(Call& call) override {
    detail::CheckpointFrame::restore_inputs(call);
    call.proceed();
  }
  bool sees_result() const override { return false; }
};
constexpr auto kRestoreOrder = static_cast<Order>(static_cast<int>(Order::kCheckpointing) + 1);

}  // namespace

std::vector<std::string> CheckpointOptions::matrix_products() {
  std::vector<std::string> names{"aten::mm",
                                 "aten::addmm",
                                 "aten::bmm",
                                 "aten::baddbmm",
                                 "aten::convolution",
                                 "aten::_scaled_dot_product_flash_attention",
                                 "aten::_scaled_dot_product_flash_attention_for_cpu",
                                 "aten::_scaled_dot_product_efficient_attention",
                                 "aten::_scaled_dot_product_cudnn_attention"};
  for (auto& name : kernels::product_operators()) names.push_back(std::move(name));
  return names;
}

std::vector<Attachment> attach_checkpointing(torch::nn::Module& root, const UnitPolicy& policy,
                                             const CheckpointOptions& options) {
  const auto checkpointing = std::make_shared<Checkpointing>(options);
  const auto restore = options.cpu_offload ? std::make_shared<RestoreInputs>() : nullptr;
  std::vector<Attachment> attachments;
  for (const auto& selected : select_units(root, policy)) {
    attachments.push_back(selected.unit->attach(checkpointing, Order::kCheckpointing));
    if (restore) attachments.push_back(selected.unit->attach(restore, kRestoreOrder));
  }
  return attachments;
}

}  // namespace levin
