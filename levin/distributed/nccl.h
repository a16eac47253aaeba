#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace levin::detail {

class TrafficCounter;

/// Why there is no NCCL in this build, or empty when there is.
std::string why_no_nccl();

/// An NCCL backend for a rank with a GPU of its own; an Error where why_no_nccl() says something. `traffic` counts
/// what its operations send.
c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                            c10::Device device, std::chrono::milliseconds timeout,
                                            std::shared_ptr<TrafficCounter> traffic = nullptr);

}  // namespace levin::detail
