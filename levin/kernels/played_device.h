#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

/// What meta tensors stand for. An estimate of memory runs a step on them and says which device it means; layers with
/// kernels of their own then allocate what they would allocate there.
namespace levin::kernels {

using at::Tensor;

/// The device whose kernels meta tensors run as; the CPU unless an estimate says otherwise.
c10::DeviceType played_device();
void set_played_device(c10::DeviceType device);
/// Whose kernels run on the tensor: those of its device, or of the one that a meta tensor stands for.
c10::DeviceType kernel_device(const Tensor& tensor);

/// Autocast of meta tensors, which torch has none of. One per thread; null outside of an estimate in mixed precision.
struct PlayedAutocast {
  at::ScalarType dtype;
  /// As at::autocast::cached_cast to that dtype.
  Tensor (*cast)(const Tensor& tensor);
};
const PlayedAutocast* played_autocast();
void set_played_autocast(const PlayedAutocast* autocast);

namespace detail {

/// Whether this build has kernels for CUDA. In residual_norm_cuda.cpp, or no_cuda.cpp where there is no CUDA.
bool has_cuda_kernels();
/// Whether a GPU has compute capability 9.0, for which the kernels of *_hopper.cu are. In residual_norm_cuda.cpp as
/// well.
bool is_hopper(c10::Device device);
/// Whether kernels of *_hopper.cu run on the device of the tensor, which is CUDA, or the one that a meta tensor stands
/// for.
bool runs_hopper_kernels(const Tensor& tensor);
/// Whether the fused kernels compute with this tensor, or a meta tensor stands for one that they would compute with.
bool runs_fused(const Tensor& tensor);

/// The dtype of autocast where it is enabled for the device of the tensor.
std::optional<at::ScalarType> autocast_dtype(const Tensor& tensor);
/// The tensor in the dtype of autocast, from its cache where it is a weight.
Tensor autocast_to(const Tensor& tensor, at::ScalarType dtype);

/// Multiprocessors of the GPU that meta tensors stand for.
inline constexpr int kPlayedProcessors = 132;
/// Bytes of shared memory that one block may have there.
inline constexpr int kPlayedSharedMemory = 232448;

}  // namespace detail
}  // namespace levin::kernels
