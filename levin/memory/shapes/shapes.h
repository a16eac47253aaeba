#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace torch {
class Library;
}

namespace levin::detail {

/// An operator was met whose results depend on values.
class UnknownShapeError final : public c10::Error {
 public:
  UnknownShapeError(const std::string& op, const std::string& needs);
};

/// Gives every operator of the tables a shape function, in the overloads that have none. `meta` registers kernels of
/// meta tensors, `above` those of their autograd: what is made of other operators is refused there, by its own name.
void register_shapes(torch::Library& meta, torch::Library& above);

}  // namespace levin::detail
