#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "levin/io/weights/pickle.h"

namespace levin {

using at::Tensor;

/// A pickle of plain values and numpy arrays, such as the batches of CIFAR-10; nothing else is built (see
/// weights/pickle.h). Strings of Python 2 come as bytes; `find` does not mind.
///
///     auto batch = levin::read_numpy_pickle("cifar-10-batches-py/data_batch_1");
///     Tensor pixels = levin::numpy_tensor(*batch.find("data"));        // uint8 [10000, 3072]
pickle::Value read_numpy_pickle(const std::filesystem::path& path);
/// The same from memory; `where` names the bytes in errors.
pickle::Value read_numpy_pickle(std::span<const std::byte> bytes, std::string_view where);

/// The array (or scalar) that a value is, as a tensor of its own memory; undefined when it is none.
Tensor numpy_tensor(const pickle::Value& value);

/// The names by which numpy's pickles make arrays, scalars and dtypes, to be added to a table.
pickle::Globals numpy_globals();

}  // namespace levin
