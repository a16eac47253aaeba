#pragma once

#include <optional>
#include <tuple>

#include "levin/kernels/linear/matmul.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// In matmul_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_matmul_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
