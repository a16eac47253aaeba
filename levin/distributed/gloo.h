#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace levin::detail {

class GroupTrace;
class TrafficCounter;

/// The address of this machine by which `host` is reached: 127.0.0.1 for itself, never a wildcard.
std::string address_towards(const std::string& host, int port);

/// A Gloo backend on one interface: that of `address`, or those that GLOO_SOCKET_IFNAME names. `abort()` of it ends
/// what is pending and closes the connections. `threads` run its operations. With a `trace` its operations are
/// recorded there, and two that differ in kind or size do not meet, which would end the process: both wait. `traffic`
/// counts what those operations send.
c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                            const std::string& address, std::chrono::milliseconds timeout, int threads,
                                            std::shared_ptr<GroupTrace> trace = nullptr,
                                            std::shared_ptr<TrafficCounter> traffic = nullptr);

/// Ranks whose connection to this one is gone.
std::vector<int> gloo_closed_peers(c10d::Backend& gloo);

}  // namespace levin::detail
