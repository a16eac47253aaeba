#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levin/distributed/collective.h"
#include "levin/strategies/options.h"

namespace c10d {
class CommHookInterface;
}

namespace levin {

/// Values of DdpOptions::comm_hook: "", "fp16", "bf16", "powersgd".
std::vector<std::string> known_comm_hooks();

namespace detail {

/// Throws when comm_hook is not known or its options make no sense.
void check_comm_hook(const DdpOptions& options);

/// How the reducer averages a bucket; null for its own way, a plain all-reduce.
std::unique_ptr<c10d::CommHookInterface> make_comm_hook(const DdpOptions& options, Collective& group);

/// PowerSGD (Vogels, Karimireddy, Jaggi 2019).
std::unique_ptr<c10d::CommHookInterface> make_powersgd_hook(const DdpOptions& options, Collective& group);

}  // namespace detail
}  // namespace levin
