#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "levin/environments/environment.h"

namespace c10d {
class Store;
}

namespace levin {

/// A key-value store that this process serves, and the port it is served on. It lives as long as the object.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  int port = 0;
};

/// Serves a store on `address` and on no other interface: the protocol has no authentication. `port` 0 picks a free
/// one. A port in use, or an address that is not this machine's, is an Error at once.
HostedStore host_store(const std::string& address, int port, std::chrono::milliseconds timeout);

/// The store of a run, with the keys of other attempts out of sight. Rank 0 serves it unless a launcher does
/// (`store_is_hosted`). Waits at most `timeout` for an address that does not answer; the Error names address and port.
c10::intrusive_ptr<c10d::Store> connect_store(const Placement& placement, std::chrono::milliseconds timeout);

}  // namespace levin
