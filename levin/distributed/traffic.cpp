#include "levin/distributed/traffic.h"

#include "levin/core/error.h"
#include "levin/distributed/group.h"

namespace levin {

int64_t Traffic::sent() const {
  int64_t sum = 0;
  for (const auto& [name, operation] : operations) sum += operation.sent;
  return sum;
}

Traffic Traffic::operator-(const Traffic& before) const {
  Traffic result;
  for (const auto& [name, now] : operations) {
    const auto found = before.operations.find(name);
    const auto then = found == before.operations.end() ? Operation() : found->second;
    if (now.calls == then.calls) continue;
    result.operations[name] = {now.calls - then.calls, now.bytes - then.bytes, now.sent - then.sent};
  }
  return result;
}

Traffic traffic(const Collective& group) {
  const auto* processes = dynamic_cast<const ProcessCollective*>(&group);
  return processes ? processes->traffic() : Traffic();
}

namespace detail {

void TrafficCounter::add(std::string_view operation, int64_t bytes, int64_t sent) {
  const std::lock_guard lock(mutex_);
  auto& row = traffic_.operations[std::string(operation)];
  ++row.calls;
  row.bytes += bytes;
  row.sent += sent;
}

Traffic TrafficCounter::read() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

int64_t sent_in_ring(std::string_view operation, int64_t bytes, int size) {
  // An all-gather is given a rank's shard, the others the whole.
  if (operation == "all_gather") return bytes * (size - 1);
  if (operation == "all_reduce") return 2 * bytes * (size - 1) / size;
  if (operation == "send") return bytes;
  return bytes * (size - 1) / size;
}

}  // namespace detail
}  // namespace levin
