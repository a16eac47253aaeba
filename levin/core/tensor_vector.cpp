// An own copy of one inline function of std::vector<at::Tensor>, which lies before LibTorch's in the order of lookup.
//
// LibTorch's wheel for aarch64 exports that function out of a source that was compiled with SVE: growing a vector of
// tensors then ends in an illegal instruction on a CPU without SVE (Neoverse N1, Cortex-A72, Apple's), also inside
// LibTorch: the constructor of an LSTM of two layers does it. LibTorch calls it through its table of symbols, so the
// first library that has it wins, and that is Levin wherever a program links Levin before LibTorch.
#include <vector>

#include <ATen/core/Tensor.h>

#if defined(__aarch64__) && defined(__GLIBCXX__)
template void std::vector<at::Tensor>::_M_realloc_insert<at::Tensor&>(iterator, at::Tensor&);
#endif
