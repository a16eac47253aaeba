#include "levin/compile/run.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/compile/memory.h"
#include "levin/core/dispatch.h"
#include "levin/core/error.h"

namespace levin::compile {

Tensor tensor_over(const c10::Storage& memory, const View& view) {
  const auto keys = c10::DispatchKeySet(c10::computeDispatchKey(view.dtype, at::kStrided, memory.device()));
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory), keys, c10::scalarTypeToTypeMeta(view.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes, view.strides, view.offset);
  return tensor;
}

c10::Storage new_memory(c10::Device device, int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)).storage();
}

Program::Program(Graph graph) : graph_(std::move(graph)), ends_(graph_.nodes.size()), memory_(graph_.storages.size()) {
  std::vector<int32_t> last(graph_.storages.size(), -1);
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    for (const auto& view : graph_.nodes[i].reads) last[static_cast<size_t>(view.storage)] = static_cast<int32_t>(i);
    for (const auto& view : graph_.nodes[i].writes) last[static_cast<size_t>(view.storage)] = static_cast<int32_t>(i);
  }
  for (size_t s = 0; s < last.size(); ++s) {
    const auto& storage = graph_.storages[s];
    if (storage.memory.unsafeGetStorageImpl() && storage.memory.use_count() > 0) memory_[s] = storage.memory;
    const bool stays = storage.enters || storage.leaves;
    if (!stays && last[s] >= 0) ends_[static_cast<size_t>(last[s])].push_back(static_cast<StorageId>(s));
  }
}

const c10::Storage& Program::memory_of(const View& view) {
  const auto place = static_cast<size_t>(view.storage);
  auto& memory = memory_[place];
  if (!memory) memory = new_memory(graph_.storages[place].device, graph_.storages[place].bytes);
  return memory;
}

void Program::run() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    auto& node = graph_.nodes[i];
    if (node.call)
      run_call(node);
    else
      run_operator(node);
    for (const auto storage : ends_[i]) memory_[static_cast<size_t>(storage)] = c10::Storage();
  }
}

void Program::run_call(Node& node) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<Tensor> reads, writes;
  for (const auto& view : node.reads) reads.push_back(tensor_over(memory_of(view), view));
  for (const auto& view : node.writes) writes.push_back(tensor_over(memory_of(view), view));
  node.call->run(reads, writes);
}

void Program::run_operator(Node& node) {
  torch::jit::Stack stack;
  for (const auto& arg : node.args) {
    if (const auto* view = std::get_if<View>(&arg)) {
      stack.emplace_back(tensor_over(memory_of(*view), *view));
    } else if (const auto* list = std::get_if<std::vector<std::optional<View>>>(&arg)) {
      const auto& type = node.op->schema().arguments()[stack.size()].type();
      if (type->isSubtypeOf(*c10::ListType::ofTensors())) {
        std::vector<Tensor> tensors;
        for (const auto& each : *list) tensors.push_back(each ? tensor_over(memory_of(*each), *each) : Tensor());
        stack.emplace_back(std::move(tensors));
      } else {
        std::vector<std::optional<Tensor>> tensors;
        for (const auto& each : *list)
          tensors.push_back(each ? std::optional(tensor_over(memory_of(*each), *each)) : std::nullopt);
        stack.emplace_back(std::move(tensors));
      }
    } else {
      stack.push_back(std::get<c10::IValue>(arg));
    }
  }
  {
    const auto own =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(detail::kBelowAutogradKey);
    const c10::impl::ForceDispatchKeyGuard keys(node.included - own, node.excluded | own);
    node.op->callBoxed(stack);
  }
  size_t next = 0;
  const auto bind = [&](const Tensor& tensor) {
    const auto place = node.results[next++];
    if (place < 0) return;
    const auto& view = node.writes[static_cast<size_t>(place)];
    const auto& storage = graph_.storages[static_cast<size_t>(view.storage)];
    const bool alike = tensor.sizes() == at::IntArrayRef(view.sizes) && tensor.scalar_type() == view.dtype &&
                       tensor.strides() == at::IntArrayRef(view.strides) && tensor.storage_offset() == view.offset &&
                       static_cast<int64_t>(tensor.storage().nbytes()) == storage.bytes;
    auto& memory = memory_[static_cast<size_t>(view.storage)];
    if (alike && !storage.leaves) {
      memory = tensor.storage();
      return;
    }
    LEVIN_CHECK(tensor.sizes() == at::IntArrayRef(view.sizes) && tensor.scalar_type() == view.dtype, "[compile] ",
                node.name(), " gives ", tensor.scalar_type(), " ", tensor.sizes(), " where it gave ", view.dtype, " ",
                at::IntArrayRef(view.sizes));
    tensor_over(memory_of(view), view).copy_(tensor);
  };
  for (const auto& value : stack) {
    if (value.isTensor())
      bind(value.toTensor());
    else if (value.isTensorList())
      for (const Tensor& tensor : value.toTensorVector()) bind(tensor);
  }
}

}  // namespace levin::compile
