// The null twin of cuda.cpp, graphs_cuda.cpp and memory_listener_cuda.cpp, for builds without CUDA.
#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/graphs.h"
#include "levin/devices/host_memory.h"
#include "levin/devices/memory_listener.h"

namespace levin {
namespace {

class NoCuda final : public Accelerator {
 public:
  std::string name() const override { return "cuda"; }
  int device_count() const override { return 0; }
  std::string why_unavailable() const override {
    return "this Levin was built without CUDA (configure with LEVIN_CUDA=ON)";
  }
  void set_device(c10::Device) const override { refuse(); }
  void synchronize(c10::Device) const override { refuse(); }
  MemoryStats memory(c10::Device) const override { refuse(); }
  void reset_peak_memory(c10::Device) const override { refuse(); }
  void limit_memory(c10::Device, int64_t) const override { refuse(); }
  DeviceInfo info(c10::Device) const override { refuse(); }
  at::Tensor rng_state(c10::Device) const override { refuse(); }
  void set_rng_state(c10::Device, const at::Tensor&) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const { detail::fail("[cuda] " + why_unavailable()); }
};

}  // namespace

const Accelerator& detail::cuda_accelerator() {
  static const NoCuda cuda;
  return cuda;
}

std::shared_ptr<detail::GraphDevice> detail::cuda_graphs(c10::Device) {
  detail::fail("[compile] " + cuda_accelerator().why_unavailable());
}

c10::Stream detail::graph_stream(c10::Device) {
  detail::fail("[compile] " + cuda_accelerator().why_unavailable());
}

void detail::set_cuda_memory_listener(MemoryListener* listener) {
  if (listener) detail::fail("[memory] " + cuda_accelerator().why_unavailable());
}

std::vector<MemorySegment> detail::cuda_memory_segments() {
  return {};
}

at::Tensor page_locked(int64_t elements, c10::ScalarType dtype) {
  return at::empty({elements}, at::TensorOptions().dtype(dtype));
}

}  // namespace levin
