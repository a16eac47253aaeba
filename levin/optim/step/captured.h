#pragma once

#include <utility>

#include "levin/devices/graphs.h"

namespace levin::optim::detail {

/// The numbers of a step in memory of the device, for a step that is being captured: every replay reads what `now()`
/// gives then, so that schedulers have their effect. Null outside of a capture.
template <class Numbers, class F>
const Numbers* refreshed_numbers(F now) {
  return static_cast<const Numbers*>(levin::detail::refreshed(
      sizeof(Numbers), [now = std::move(now)](void* host) { *static_cast<Numbers*>(host) = now(); }));
}

}  // namespace levin::optim::detail
