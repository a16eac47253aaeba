#include "levin/devices/hollow_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace levin::detail {

Tensor hollow(int64_t numel, c10::Device device, c10::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  auto storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), c10::GetAllocator(device.type()),
      /*resizable=*/true));
  auto tensor = at::empty({0}, at::TensorOptions(device).dtype(dtype));
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

void set_memory(const Tensor& tensor, bool present) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = present ? static_cast<size_t>(tensor.numel()) * tensor.element_size() : 0;
  storage->set_data_ptr_noswap(present ? c10::GetAllocator(tensor.device().type())->allocate(bytes)
                                       : at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(bytes);
}

void show_memory(const Tensor& tensor, const Tensor& memory) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(memory.mutable_data_ptr(), tensor.device()));
  storage->set_nbytes(static_cast<size_t>(tensor.numel()) * tensor.element_size());
}

}  // namespace levin::detail
