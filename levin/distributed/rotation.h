#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "levin/distributed/collective.h"

namespace c10d {
class Work;
}

namespace levin {

/// A tensor on its way around a ring: it goes to the rank behind this one (the last sends to the first) while that of
/// the rank before comes, and the caller computes.
///
///     Rotation rotation(ranks, keys);
///     attend(keys);
///     keys = rotation.wait();      // those of the rank before
///
/// Every rank must make it, with the same shape and dtype. Ranks do not meet for it and nothing is checked: it is for
/// inner loops, whose ranks have agreed before (Collective::agree). It is Collective::run of "rotate N bytes".
class Rotation {
 public:
  Rotation(Collective& ranks, const Tensor& tensor);
  ~Rotation();
  Rotation(const Rotation&) = delete;
  Rotation& operator=(const Rotation&) = delete;

  /// What the rank before has sent. Once; the own tensor may change from then on.
  Tensor wait();

 private:
  Collective& ranks_;
  c10::Device device_;
  Tensor sent_, received_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace levin
