#pragma once

namespace levin::kernels {

/// While one is alive, nothing writes the weights of products that this thread launches, nor positions and earlier
/// tokens of a cache that decode_attention reads: on CUDA they may be read before the kernels ahead have ended
/// (early_start.cuh).
class ConstantWeights {
 public:
  ConstantWeights();
  ~ConstantWeights();
  ConstantWeights(const ConstantWeights&) = delete;
  ConstantWeights& operator=(const ConstantWeights&) = delete;

  static bool here();

 private:
  bool before_;
};

}  // namespace levin::kernels
