#pragma once

#include <memory>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace levin::detail {

/// Autocast for meta tensors, which torch's own passes by: while it lives, operators on this thread get their arguments
/// in the dtype that autocast of a device would give them. Copies of weights are made once and kept to the end.
class MetaAutocast {
 public:
  MetaAutocast(c10::DeviceType device, c10::ScalarType dtype);
  ~MetaAutocast();
  MetaAutocast(const MetaAutocast&) = delete;
  MetaAutocast& operator=(const MetaAutocast&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace levin::detail
