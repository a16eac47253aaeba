#include "levin/nn/checkpointing/activation_offload.h"

#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/nn/checkpointing/activation_offload_copies.h"
#include "levin/nn/checkpointing/checkpointing_frame.h"
#include "levin/nn/saved_tensors.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

struct OffloadHooks final : SavedTensorHooks {
  OffloadHooks(std::shared_ptr<detail::HostCopies> c, const detail::LivingStorages& l, const std::string& n)
      : copies(std::move(c)), living(&l), name(n) {}

  void call_pack_hook(const Tensor& tensor) override {
    version = detail::SavedVersion(tensor);
    if (!living->is_state(tensor)) copy = copies->put(tensor);
    if (!copy) held = tensor.is_leaf() ? tensor : tensor.detach();
    SavedTensorScope::note_kept(copy ? copy->host() : tensor);
    living = nullptr;
  }
  Tensor call_unpack_hook() override {
    version.check("offload_activations", name);
    return copy ? copy->get() : held;
  }

  std::shared_ptr<detail::HostCopies> copies;
  const detail::LivingStorages* living;
  std::string name;
  detail::SavedVersion version;
  std::unique_ptr<detail::HostCopy> copy;
  Tensor held;
};

class OffloadSaved final : public SavedTensors {
 public:
  OffloadSaved(std::shared_ptr<detail::HostCopies> copies, const torch::nn::Module& module)
      : copies_(std::move(copies)), living_(module, {}), name_(class_name(module)) {}
  std::unique_ptr<SavedTensorHooks> make() override { return std::make_unique<OffloadHooks>(copies_, living_, name_); }

 private:
  std::shared_ptr<detail::HostCopies> copies_;
  detail::LivingStorages living_;
  std::string name_;
};

thread_local bool offloading = false;

class Offload final : public Interceptor {
 public:
  explicit Offload(const OffloadOptions& options) : copies_(std::make_shared<detail::HostCopies>(options)) {}

  void around(Call& call) override {
    if (!c10::GradMode::is_enabled() || offloading || detail::CheckpointFrame::active()) return call.proceed();
    struct Scope {
      Scope() { offloading = true; }
      ~Scope() { offloading = false; }
    } const scope;
    copies_->begin_group();
    OffloadSaved saved(copies_, call.module());
    const SavedTensorScope hooks(saved);
    call.proceed();
  }

 private:
  std::shared_ptr<detail::HostCopies> copies_;
};

}  // namespace

std::vector<Attachment> attach_activation_offload(torch::nn::Module& root, const UnitPolicy& policy,
                                                  const OffloadOptions& options) {
  LEVIN_CHECK(options.min_bytes >= 0, "[offload_activations] min_bytes ", options.min_bytes, " must not be negative");
  LEVIN_CHECK(options.max_in_flight > 0, "[offload_activations] max_in_flight ", options.max_in_flight,
              " must be positive");
  const auto offload = std::make_shared<Offload>(options);
  std::vector<Attachment> attachments;
  // Further inside than checkpointing, which decides first.
  const auto order = static_cast<Order>(static_cast<int>(Order::kCheckpointing) + 10);
  for (const auto& selected : select_units(root, policy)) attachments.push_back(selected.unit->attach(offload, order));
  return attachments;
}

}  // namespace levin
