#pragma once

#include <memory>

#include <c10/core/Device.h>

namespace torch {
class Library;
}

namespace levin::detail {

/// While it lives, meta tensors can run what libtorch has shapes for in Python alone (layers of normalization and
/// convolution, fused attention, embeddings, ...), and they run it as a device would: with the kernels it chooses, the
/// results these save for backward, and the largest of their temporaries.
class MetaKernels {
 public:
  explicit MetaKernels(c10::DeviceType device);
  ~MetaKernels();
  MetaKernels(const MetaKernels&) = delete;
  MetaKernels& operator=(const MetaKernels&) = delete;

 private:
  std::unique_ptr<torch::Library> shapes_, choices_;
};

}  // namespace levin::detail
