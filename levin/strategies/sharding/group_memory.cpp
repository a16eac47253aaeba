#include "levin/strategies/sharding/group_memory.h"

#include <atomic>
#include <filesystem>
#include <numeric>

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"

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

size_t arrived_with_unit(std::span<const int64_t> bytes) {
  const auto all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  size_t arrived = 0;
  for (auto left = all; left > all / 2 && arrived + 1 < bytes.size(); ++arrived) left -= bytes[arrived];
  return arrived;
}

uint64_t fingerprint(const Tensor& tensor) {
  const auto* words = static_cast<const uint64_t*>(tensor.const_data_ptr());
  std::atomic<uint64_t> sum = 0;
  parallel_for(0, static_cast<int64_t>(tensor.nbytes() / sizeof(uint64_t)), 1 << 15, [&](int64_t begin, int64_t end) {
    constexpr uint64_t kPlace = 0x9e3779b97f4a7c15, kMix = 0xd6e8feb86659fd93;
    // Two rounds: after one, the signs of two values could change without changing the sum.
    uint64_t part = 0, place = static_cast<uint64_t>(begin) * kPlace;
    for (int64_t i = begin; i < end; ++i, place += kPlace) {
      uint64_t mixed = words[i] ^ place;
      mixed = (mixed ^ (mixed >> 32)) * kMix;
      mixed = (mixed ^ (mixed >> 32)) * kMix;
      part += mixed ^ (mixed >> 32);
    }
    sum += part;
  });
  return sum;
}

Tensor on_disk(const std::string& folder, int64_t numel, c10::ScalarType dtype) {
  if (numel == 0) return at::empty({0}, at::TensorOptions().dtype(dtype));  // a file of no bytes cannot be mapped
  static std::atomic<int> count = 0;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const auto path = std::filesystem::path(folder) / fmt::format(".levin-{}-{}", ::getpid(), count++);
  const auto bytes = static_cast<uintmax_t>(numel) * c10::elementSize(dtype);
  const auto space = std::filesystem::space(folder, error);
  LEVIN_CHECK(!error, "[offload] the folder \"", folder, "\" cannot be used: ", error.message());
  LEVIN_CHECK(space.available > bytes,
              fmt::format("[offload] \"{}\" has {:.1f} GB left, and {:.1f} GB are needed", folder,
                          static_cast<double>(space.available) / 1e9, static_cast<double>(bytes) / 1e9));
  auto tensor = at::from_file(path.string(), /*shared=*/true, numel, at::TensorOptions().dtype(dtype));
  // The mapping keeps it; without a name it is gone when the process ends, however it does.
  std::filesystem::remove(path, error);
  return tensor;
}

}  // namespace levin::detail
