#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// NumPy's file format for one array, versions 1 to 3. Objects and structures are refused: nothing is ever executed.
std::string write_npy(const at::Tensor& tensor);
/// `where` is for errors.
at::Tensor read_npy(std::string_view bytes, std::string_view where);

/// What the head says, checked against the size of the data.
struct NpyHead {
  /// "u1", "i8", "f4", ... without the byte order.
  std::string type;
  bool big_endian = false;
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t data = 0;
};
NpyHead parse_npy_head(std::string_view bytes, std::string_view where);

}  // namespace levin::detail
