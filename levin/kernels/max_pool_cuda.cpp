#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/max_pool_detail.h"
#include "levin/kernels/max_pool_launch.h"

namespace levin::kernels::detail {
namespace {

/// `in` is x or its gradient, `out` y or its gradient; of what this operator has not made itself, `given` may stand
/// anywhere.
MaxPoolLaunch launch_of(const Tensor& in, const Tensor& out, const Tensor& chosen, const Tensor& given,
                        const MaxPoolWindow& w) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {.type = number_type("max_pool2d", in.scalar_type()),
          .vectors = in.size(1) % (16 / in.element_size()) == 0 && is_pack_aligned(given.const_data_ptr()),
          .images = in.size(0),
          .channels = in.size(1),
          .height = number(in.size(2)),
          .width = number(in.size(3)),
          .out_height = number(out.size(2)),
          .out_width = number(out.size(3)),
          .kernel_height = number(w.kernel[0]),
          .kernel_width = number(w.kernel[1]),
          .stride_height = number(w.stride[0]),
          .stride_width = number(w.stride[1]),
          .padding_height = number(w.padding[0]),
          .padding_width = number(w.padding[1]),
          .in = in.data_ptr(),
          .out = out.data_ptr(),
          .chosen = chosen.data_ptr<uint8_t>()};
}

void check(int error) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

std::tuple<Tensor, Tensor> max_pool_on_cuda(const Tensor& x, at::IntArrayRef flat) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto window = window_of(flat);
  auto made = allocate_max_pool(x, window);
  const auto& [y, chosen] = made;
  check(launch_max_pool(launch_of(x, y, chosen, x, window), c10::cuda::getCurrentCUDAStream().stream()));
  return made;
}

Tensor max_pool_backward_on_cuda(const Tensor& grad, const Tensor& chosen, at::IntArrayRef sizes,
                                 at::IntArrayRef flat) {
  const c10::cuda::CUDAGuard guard(grad.device());
  const auto dy = grad.contiguous(at::MemoryFormat::ChannelsLast);
  auto dx = allocate_max_pool_backward(dy, sizes);
  check(launch_max_pool_backward(launch_of(dx, dy, chosen, dy, window_of(flat)),
                                 c10::cuda::getCurrentCUDAStream().stream()));
  return dx;
}

}  // namespace

void register_max_pool_cuda(torch::Library& library) {
  library.impl("max_pool2d", max_pool_on_cuda);
  library.impl("max_pool2d_backward", max_pool_backward_on_cuda);
}

}  // namespace levin::kernels::detail
