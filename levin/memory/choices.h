#pragma once

namespace torch {
class Library;
}

namespace levin::detail {

/// Operators that are made of others, or whose gradients are, as the device would choose these: meta tensors choose in
/// another way. `meta` takes kernels of meta tensors, `library` those of their autograd.
void register_choices(torch::Library& meta, torch::Library& library);

}  // namespace levin::detail
