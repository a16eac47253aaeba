#include <ATen/cuda/CUDAContext.h>

#include "levin/kernels/attention/packed_attention.h"

namespace levin::kernels::detail {

PackedAttentionLaunch launch_of(const at::Tensor& qkv) {
  return {.qkv = qkv.const_data_ptr(),
          .half = qkv.scalar_type() == at::kHalf,
          .batch = static_cast<int32_t>(qkv.size(0)),
          .tokens = static_cast<int32_t>(qkv.size(1)),
          .heads = static_cast<int32_t>(qkv.size(3)),
          .processors = at::cuda::getDeviceProperties(qkv.device().index())->multiProcessorCount};
}

}  // namespace levin::kernels::detail
