#include "levin/compile/trace.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Formatting.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include "levin/compile/memory.h"
#include "levin/core/compile/step_watch.h"
#include "levin/core/dispatch.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using torch::jit::Stack;

/// Operators that give memory without contents.
bool is_allocation(const std::string& name) {
  static const std::set<std::string> all = {"aten::empty",     "aten::empty_strided",     "aten::empty_like",
                                            "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"};
  return all.contains(name);
}

/// It runs as the operators that it is made of.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

/// Arguments that are written although the schema does not say so.
std::vector<std::string> silent_writes(const std::string& name) {
  if (name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" || name == "aten::miopen_batch_norm")
    return {"running_mean", "running_var"};
  return {};
}

class ToldCall final : public Call {
 public:
  explicit ToldCall(levin::detail::ToldWork told) : name_(std::move(told.name)), work_(std::move(told.work)) {}
  std::string name() const override { return name_; }
  void run(std::span<const Tensor> reads, std::span<const Tensor> writes) override { work_(reads, writes); }
  bool changes_bits() const override { return false; }

 private:
  std::string name_;
  std::function<void(std::span<const Tensor>, std::span<const Tensor>)> work_;
};

class Recorder final : public levin::detail::StepWatch {
 public:
  explicit Recorder(const TraceOptions& options) : options_(options) { worked_ = work(); }

  void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) override {
    if (is_composite(op)) return levin::detail::call_below_watch(op, keys, stack, /*inside=*/true);
    const std::lock_guard lock(mutex_);
    const auto keys_now = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ExcludeDispatchKeyGuard unseen(levin::detail::kBelowAutogradKey);
    const auto& schema = op.schema();
    const auto name = schema.name();
    look_for_unseen("before " + name);
    Node node;
    node.op = op;
    node.included = keys_now.included_, node.excluded = keys_now.excluded_;
    node.phase = torch::autograd::get_current_graph_task_id() >= 0 ? Phase::kBackward : Phase::kForward;
    node.random = op.hasTag(at::Tag::nondeterministic_seeded);
    if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))
      refuse("the host looks at what " + name + " gives");
    if (name.starts_with("c10d::") || name.starts_with("_c10d_functional")) refuse("ranks communicate in it");
    if (name == "aten::set_" || name == "aten::resize_" || name == "aten::set_data")
      refuse(name + " changes what a tensor stands for");

    const size_t count = schema.arguments().size(), first = stack->size() - count;
    std::vector<Tensor> written;
    const auto silent = silent_writes(name);
    for (size_t i = 0; i < count; ++i) {
      const auto& value = (*stack)[first + i];
      const auto& argument = schema.arguments()[i];
      const bool writes = (argument.alias_info() && argument.alias_info()->isWrite()) ||
                          std::ranges::find(silent, argument.name()) != silent.end();
      node.args.push_back(argument_of(value, node, writes ? &written : nullptr));
    }
    try {
      levin::detail::call_below_watch(op, keys, stack);
    } catch (const std::exception&) {
      if (failed_.empty()) failed_ = name;
      throw;
    }
    worked_ = work();
    finish(std::move(node), name, written, *stack);
  }

  void on_work(levin::detail::ToldWork& told) override {
    const std::lock_guard lock(mutex_);
    look_for_unseen("before " + told.name);
    Node node;
    for (const auto& tensor : told.reads) node.reads.push_back(view_of(tensor));
    for (const auto& tensor : told.writes) view_of(tensor);
    told.work(told.reads, told.writes);
    worked_ = work();
    std::set<StorageId> once;
    for (const auto& tensor : told.writes) once.insert(write_of(tensor, once, node));
    node.call = std::make_shared<ToldCall>(std::move(told));
    graph_.nodes.push_back(std::move(node));
  }

  TracedStep finish_step() {
    look_for_unseen("after the last operator");
    for (size_t i = 0; i < graph_.storages.size(); ++i) {
      auto& storage = graph_.storages[i];
      if (storage.enters) {
        // Nobody but this list and the tensor that was looked at: made by the step, unseen.
        if (storage.memory.use_count() == 1 && storage.bytes > 0 && version_[i] == 0 && !is_number(storage))
          refuse("it makes memory past the dispatcher");
        storage.leaves = version_[i] > 0;
      } else if (auto alive = weak_[i].lock()) {
        storage.leaves = true;
        storage.memory = c10::Storage(std::move(alive));
      }
    }
    graph_.renumber();
    return {std::move(graph_), reason_};
  }

  const std::string& failed() const { return failed_; }

 private:
  int64_t work() const { return options_.work ? options_.work() : 0; }
  void look_for_unseen(const std::string& where) {
    if (work() != worked_) refuse("it gives the device work that is no operator, " + where);
    worked_ = work();
  }
  void refuse(const std::string& reason) {
    if (reason_.empty()) reason_ = reason;
  }
  static bool is_number(const GraphStorage& storage) { return storage.device.is_cpu() && storage.bytes <= 8; }

  StorageId known(const Tensor& tensor) const {
    const auto found = ids_.find(tensor.storage().unsafeGetStorageImpl());
    return found == ids_.end() ? -1 : found->second;
  }

  StorageId add(const Tensor& tensor, bool enters) {
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    const auto id = graph_.add_storage(tensor.device(), static_cast<int64_t>(impl->nbytes()));
    ids_[impl] = id;
    version_.push_back(0);
    weak_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    auto& storage = graph_.storages.back();
    storage.enters = enters;
    if (!enters) return id;
    storage.memory = tensor.storage();
    if (!tensor.is_inference()) storage.counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (options_.on_entering) {
      const auto itemsize = static_cast<int64_t>(tensor.element_size());
      options_.on_entering(tensor_over(
          storage.memory, View{.dtype = tensor.scalar_type(), .sizes = {storage.bytes / itemsize}, .strides = {1}}));
    }
    return id;
  }

  View view_of(const Tensor& tensor) {
    if (!tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
        tensor.is_neg() || tensor.is_meta()) {
      refuse("it uses tensors that are not plain ones (sparse, quantized, conjugated)");
      return {.storage = opaque()};
    }
    auto id = known(tensor);
    if (id < 0) id = add(tensor, /*enters=*/true);
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    if (bytes != graph_.storages[static_cast<size_t>(id)].bytes) refuse("a tensor's memory changes its size");
    return {.storage = id,
            .version = version_[static_cast<size_t>(id)],
            .dtype = tensor.scalar_type(),
            .offset = tensor.storage_offset(),
            .sizes = tensor.sizes().vec(),
            .strides = tensor.strides().vec()};
  }
  StorageId opaque() {
    if (opaque_ < 0) {
      opaque_ = graph_.add_storage(c10::kCPU, 0);
      version_.push_back(0);
      weak_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>());
    }
    return opaque_;
  }

  Argument argument_of(const c10::IValue& value, Node& node, std::vector<Tensor>* written) {
    const auto add_tensor = [&](const Tensor& tensor) {
      auto view = view_of(tensor);
      node.reads.push_back(view);
      if (written) written->push_back(tensor);
      return view;
    };
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return value;
      return add_tensor(tensor);
    }
    if (value.isTensorList()) {
      std::vector<std::optional<View>> list;
      for (const Tensor& tensor : value.toTensorVector())
        list.push_back(tensor.defined() ? std::optional(add_tensor(tensor)) : std::nullopt);
      return list;
    }
    if (value.isOptionalTensorList()) {
      std::vector<std::optional<View>> list;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor && tensor->defined() ? std::optional(add_tensor(*tensor)) : std::nullopt);
      return list;
    }
    return value;
  }

  /// Notes a write, the first one of a node to a storage as a new version.
  StorageId write_of(const Tensor& tensor, const std::set<StorageId>& once, Node& node) {
    auto view = view_of(tensor);
    const auto id = view.storage;
    if (!once.contains(id)) ++version_[static_cast<size_t>(id)];
    view.version = version_[static_cast<size_t>(id)];
    node.writes.push_back(std::move(view));
    return id;
  }

  void finish(Node node, const std::string& name, const std::vector<Tensor>& written, const Stack& stack) {
    std::vector<Tensor> returned;
    const size_t count = node.op->schema().returns().size();
    for (size_t i = stack.size() - count; i < stack.size(); ++i) {
      const auto& value = stack[i];
      if (value.isTensor())
        returned.push_back(value.toTensor());
      else if (value.isTensorList())
        for (const Tensor& tensor : value.toTensorVector()) returned.push_back(tensor);
    }
    std::set<StorageId> once;
    const bool allocates = is_allocation(name);
    std::set<StorageId> fresh;
    for (const auto& tensor : returned) {
      int32_t place = -1;
      if (tensor.defined() && tensor.has_storage()) {
        auto id = known(tensor);
        const bool is_new = id < 0;
        if (is_new) fresh.insert(id = add(tensor, /*enters=*/false));
        if (fresh.contains(id) && !allocates) {
          place = static_cast<int32_t>(node.writes.size());
          once.insert(write_of(tensor, once, node));
        }
      } else if (tensor.defined()) {
        view_of(tensor);
      }
      node.results.push_back(place);
    }
    for (const auto& tensor : written) once.insert(write_of(tensor, once, node));
    if (node.writes.empty() && !node.random) return;  // a view, memory without contents, or a question
    graph_.nodes.push_back(std::move(node));
  }

  const TraceOptions& options_;
  std::mutex mutex_;
  Graph graph_;
  std::unordered_map<c10::StorageImpl*, StorageId> ids_;
  /// So that no other storage has the address of one that is gone.
  std::vector<WeakStorage> weak_;
  std::vector<int32_t> version_;
  StorageId opaque_ = -1;
  int64_t worked_ = 0;
  std::string reason_, failed_;
};

}  // namespace

TracedStep trace(const std::function<void()>& step, const TraceOptions& options) {
  Recorder recorder(options);
  try {
    const levin::detail::WatchStep watch(recorder);
    step();
  } catch (c10::Error& error) {
    if (!recorder.failed().empty()) error.add_context("in " + recorder.failed());
    throw;
  }
  return recorder.finish_step();
}

}  // namespace levin::compile
