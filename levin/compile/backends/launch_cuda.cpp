// Kernels of groups on CUDA: source, machine code, launch through the driver.
#include <array>
#include <cstdint>
#include <mutex>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "levin/compile/backends/backend.h"
#include "levin/compile/backends/cubin_cache.h"
#include "levin/compile/backends/kernel_source.h"
#include "levin/compile/backends/nvrtc.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

using levin::detail::concat;

/// Functions of the driver that the runtime does not have.
struct Driver {
  decltype(&cuModuleLoadData) load = nullptr;
  decltype(&cuModuleUnload) unload = nullptr;
  decltype(&cuModuleGetFunction) function = nullptr;
  decltype(&cuLaunchKernel) launch = nullptr;

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

 private:
  template <class Function>
  static void find(Function& function, const char* name) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const auto error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
    LEVIN_CHECK(error == cudaSuccess && found == cudaDriverEntryPointSuccess, "[compile] the CUDA driver has no ",
                name);
    function = reinterpret_cast<Function>(entry);
  }
  Driver() {
    find(load, "cuModuleLoadData");
    find(unload, "cuModuleUnload");
    find(function, "cuModuleGetFunction");
    find(launch, "cuLaunchKernel");
  }
};

void check(CUresult result, const char* what) {
  LEVIN_CHECK(result == CUDA_SUCCESS, "[compile] ", what, " of a fused kernel failed with CUDA's error ",
              static_cast<int>(result));
}

/// Machine code of one source on one device.
class LoadedSource {
 public:
  LoadedSource(const Group& group, c10::Device device, bool aligned) {
    const auto* properties = at::cuda::getDeviceProperties(device.index());
    source_ = cuda_source(group, {.processors = properties->multiProcessorCount, .aligned = aligned});
    std::string why;
    const auto* nvrtc = Nvrtc::find(why);
    LEVIN_CHECK(nvrtc, "[compile] ", why);
    const auto architecture = concat("sm_", properties->major, properties->minor, properties->major == 9 ? "a" : "");
    static const CubinCache cache(CubinCache::default_folder());
    const auto key = concat(architecture, " ", nvrtc->version(), "\n", source_.text);
    const auto cubin = cache.get(key, [&] { return nvrtc->cubin(source_.text, architecture); });
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaFree(nullptr));  // the context is there
    check(Driver::get().load(&module_, cubin.data()), "loading");
    for (const auto& launch : source_.launches) {
      CUfunction function = nullptr;
      check(Driver::get().function(&function, module_, launch.kernel.c_str()), "finding a function");
      functions_.push_back(function);
    }
  }
  // Modules stay: a CUDA graph may hold their kernels.

  void run(std::span<void* const> tensors, c10::Device device) {
    const c10::cuda::CUDAGuard guard(device);
    at::Tensor work;
    if (source_.workspace_bytes > 0)
      work = at::empty({source_.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    std::vector<void*> pointers(tensors.begin(), tensors.end());
    pointers.push_back(work.defined() ? work.mutable_data_ptr() : nullptr);
    std::vector<void*> arguments;
    for (auto& pointer : pointers) arguments.push_back(&pointer);
    const auto stream = at::cuda::getCurrentCUDAStream(device.index()).stream();
    for (size_t i = 0; i < functions_.size(); ++i) {
      const auto& launch = source_.launches[i];
      check(Driver::get().launch(functions_[i], static_cast<unsigned>(launch.blocks),
                                 static_cast<unsigned>(launch.blocks_y), 1, static_cast<unsigned>(launch.threads),
                                 static_cast<unsigned>(launch.threads_y), 1, 0, stream, arguments.data(), nullptr),
            "the launch");
    }
  }

 private:
  CudaSource source_;
  CUmodule module_ = nullptr;
  std::vector<CUfunction> functions_;
};

class CudaKernel final : public GroupKernel {
 public:
  CudaKernel(const Group& group, c10::Device device) : group_(group), device_(device), aligned_(group, device, true) {}

  void run(std::span<void* const> tensors) override {
    bool aligned = true;
    for (auto* pointer : tensors) aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
    if (aligned) return aligned_.run(tensors, device_);
    if (!narrow_) narrow_ = std::make_unique<LoadedSource>(group_, device_, false);
    narrow_->run(tensors, device_);
  }

 private:
  Group group_;
  c10::Device device_;
  LoadedSource aligned_;
  std::unique_ptr<LoadedSource> narrow_;
};

}  // namespace

std::shared_ptr<GroupKernel> make_cuda_kernel(const Group& group, c10::Device device) {
  return std::make_shared<CudaKernel>(group, device);
}

std::string why_no_cuda_kernels() {
  std::string why;
  return Nvrtc::find(why) ? std::string() : why;
}

}  // namespace levin::compile
