#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace levin::detail {

/// Whether work of the device is asynchronous to the host.
inline bool has_streams(c10::Device device) {
  return !device.is_cpu() && !device.is_meta();
}

/// The one that computes, on this thread.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// `later` continues when all that `earlier` has been given so far is done.
inline void order_after(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace levin::detail
