#pragma once

namespace torch {
class Library;
}

namespace levin::detail {

/// Convolutions of meta tensors, with what oneDNN and torch take for them on the CPU.
void register_convolutions(torch::Library& meta);

}  // namespace levin::detail
