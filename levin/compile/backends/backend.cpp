#include "levin/compile/backends/backend.h"

#include <map>
#include <mutex>
#include <string>

namespace levin::compile {

std::shared_ptr<GroupKernel> make_kernel(const Group& group, c10::Device device) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<GroupKernel>> kernels;
  const auto key = device.str() + "\n" + group.print();
  {
    const std::lock_guard lock(mutex);
    if (auto kernel = kernels[key].lock()) return kernel;
  }
  // Several are compiled at once.
  auto kernel = device.is_cuda() ? make_cuda_kernel(group, device) : make_cpu_kernel(group);
  const std::lock_guard lock(mutex);
  auto& known = kernels[key];
  if (auto other = known.lock()) return other;
  known = kernel;
  return kernel;
}

}  // namespace levin::compile
