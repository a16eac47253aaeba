#include "levin/nn/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include "levin/core/error.h"
#include "levin/nn/module_access.h"

namespace levin {
namespace {

namespace autograd = torch::autograd;

thread_local SavedTensorScope* innermost_scope = nullptr;

/// The engine that was there keeps its threads and runs every backward; this one only answers the question for hooks.
/// That is why it can be put in front at any time.
class HookedEngine final : public autograd::Engine {
 public:
  explicit HookedEngine(autograd::Engine& behind) : behind_(behind) {}

  autograd::variable_list execute(const autograd::edge_list& roots, const autograd::variable_list& inputs,
                                  bool keep_graph, bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    return behind_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(const std::shared_ptr<autograd::GraphTask>& task,
                                                                 std::shared_ptr<autograd::Node> root,
                                                                 autograd::InputBuffer&& input) override {
    return behind_.execute_with_graph_task(task, std::move(root), std::move(input));
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind_.make_anomaly_metadata();
  }
  std::unique_ptr<SavedTensorHooks> get_default_saved_variable_hooks() override {
    return innermost_scope ? innermost_scope->hooks() : hooks_behind();
  }

  std::unique_ptr<SavedTensorHooks> hooks_behind() { return behind_.get_default_saved_variable_hooks(); }

 private:
  autograd::Engine& behind_;
};

// One per process and never destroyed: graphs may outlive main.
HookedEngine& hooked_engine() {
  static auto* engine = new HookedEngine(autograd::Engine::get_default_engine());
  return *engine;
}

void install_engine() {
  static const bool once = [] {
    hooked_engine();
    autograd::set_default_engine_stub([]() -> autograd::Engine& { return hooked_engine(); });
    return true;
  }();
  LEVIN_CHECK(
      once && &autograd::Engine::get_default_engine() == &hooked_engine(),
      "[saved_tensors] another autograd engine was installed after Levin's (Python's torch was loaded?); load it "
      "before the first SavedTensorScope");
}

const c10::StorageImpl* storage_of(const Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

// ---- SavedTensorScope

SavedTensorScope::SavedTensorScope(SavedTensors& saved) : saved_(saved), outer_(innermost_scope) {
  install_engine();
  innermost_scope = this;
}

SavedTensorScope::~SavedTensorScope() {
  innermost_scope = outer_;
}

std::unique_ptr<SavedTensorHooks> SavedTensorScope::outer_hooks() const {
  return outer_ ? outer_->saved_.make() : hooked_engine().hooks_behind();
}

bool SavedTensorScope::is_innermost(const SavedTensors& saved) {
  return innermost_scope && &innermost_scope->saved_ == &saved;
}

void SavedTensorScope::note_kept(const Tensor& tensor) {
  for (auto* scope = innermost_scope; scope; scope = scope->outer_) scope->saved_.kept(tensor);
}

// ---- SavedBytes

/// Holds the tensor as autograd would, or lets the scope outside hold it.
struct SavedBytes::Hooks final : SavedTensorHooks {
  explicit Hooks(std::unique_ptr<SavedTensorHooks> outer_hooks) : outer(std::move(outer_hooks)) {}

  void call_pack_hook(const Tensor& tensor) override {
    if (outer) return outer->call_pack_hook(tensor);
    held = tensor.is_leaf() ? tensor : tensor.detach();
    SavedTensorScope::note_kept(tensor);
  }
  Tensor call_unpack_hook() override { return outer ? outer->call_unpack_hook() : held; }

  std::unique_ptr<SavedTensorHooks> outer;
  Tensor held;
};

SavedBytes::SavedBytes() : scope_(std::make_unique<SavedTensorScope>(static_cast<SavedTensors&>(*this))) {}

SavedBytes::SavedBytes(const torch::nn::Module& ignored) : SavedBytes() {
  ignore(ignored);
}

SavedBytes::~SavedBytes() = default;

std::unique_ptr<SavedTensorHooks> SavedBytes::make() {
  return std::make_unique<Hooks>(scope_->outer_hooks());
}

void SavedBytes::kept(const Tensor& tensor) {
  const auto* storage = storage_of(tensor);
  if (!storage || ignored_.contains(storage) || seen_.contains(storage)) return;
  seen_.emplace(storage, Seen{tensor.storage().getWeakStorageImpl(), static_cast<int64_t>(storage->nbytes()),
                              tensor.device().type()});
}

void SavedBytes::ignore(std::span<const Tensor> tensors) {
  for (const auto& tensor : tensors)
    if (const auto* storage = storage_of(tensor)) {
      ignored_.emplace(storage, tensor.storage().getWeakStorageImpl());
      seen_.erase(storage);
    }
}

void SavedBytes::ignore(const torch::nn::Module& module) {
  detail::each_state(module, [&](const Tensor& tensor) { ignore(tensor); });
}

int64_t SavedBytes::bytes() const {
  int64_t sum = 0;
  for (const auto& [storage, seen] : seen_) sum += seen.bytes;
  return sum;
}

int64_t SavedBytes::bytes(c10::DeviceType device) const {
  int64_t sum = 0;
  for (const auto& [storage, seen] : seen_)
    if (seen.device == device) sum += seen.bytes;
  return sum;
}

}  // namespace levin
