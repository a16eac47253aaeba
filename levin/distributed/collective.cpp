#include "levin/distributed/collective.h"

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/core/host.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/distributed/checks.h"
#include "levin/distributed/gloo.h"
#include "levin/distributed/group.h"
#include "levin/distributed/nccl.h"
#include "levin/distributed/single.h"
#include "levin/distributed/store.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds(milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

std::vector<int> missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  for (int i = 0; i < world_size; ++i)
    if (!store.check({fmt::format("joined/{}", i)})) missing.push_back(i);
  return missing;
}

/// Announces this rank and waits until all have done so.
void wait_for_all(c10d::Store& store, const Placement& placement, Clock::time_point deadline, milliseconds timeout) {
  const auto world = std::to_string(placement.world_size);
  const auto agreed = store.compareSet("world_size", std::string(), world);
  LEVIN_CHECK(agreed == world, "[join] rank ", placement.global_rank, " was started with WORLD_SIZE=", world,
              ", but another rank with WORLD_SIZE=", agreed);
  const auto times = store.add(fmt::format("joined/{}", placement.global_rank), 1);
  LEVIN_CHECK(times == 1, "[join] rank ", placement.global_rank,
              " joined twice: two processes have RANK=", placement.global_rank);
  if (store.add("joined", 1) == placement.world_size) store.set("complete", std::string("1"));

  const auto start = Clock::now();
  for (bool said = false; !store.check({"complete"});) {
    const auto waited = Clock::now() - start;
    if (Clock::now() > deadline) {
      const auto missing = missing_ranks(store, placement.world_size);
      LEVIN_CHECK(missing.empty(), "[join] ", rank_list(missing), " of ", placement.world_size,
                  " did not arrive within ", seconds(timeout), " s");
      break;
    }
    if (!said && waited > std::chrono::seconds(10)) {
      said = true;
      log_info(fmt::format("waiting for {} of {}", rank_list(missing_ranks(store, placement.world_size)),
                           placement.world_size));
    }
    std::this_thread::sleep_for(milliseconds(waited < std::chrono::seconds(1) ? 2 : 50));
  }
}

/// Whether two ranks of the run have the same GPU, in which case NCCL cannot be used.
bool share_a_device(c10d::Store& store, const Placement& placement, c10::Device device) {
  store.append("devices", [&] {
    const auto text = fmt::format("{} {}\n", host_name(), static_cast<int>(device.index()));
    return std::vector<uint8_t>(text.begin(), text.end());
  }());
  if (store.add("devices/count", 1) == placement.world_size) store.set("devices/complete", std::string("1"));
  store.wait({"devices/complete"});
  std::istringstream lines(store.get_to_str("devices"));
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    if (std::find(seen.begin(), seen.end(), line) != seen.end()) return true;
    seen.push_back(line);
  }
  return false;
}

bool use_nccl(c10d::Store& store, const Placement& placement, c10::Device device, const std::string& backend) {
  if (!device.is_cuda()) {
    LEVIN_CHECK(backend != "nccl", "[join] backend \"nccl\" needs a CUDA device, and this rank is on ", device.str(),
                "; \"gloo\" or \"auto\" can be used");
    return false;
  }
  if (backend == "gloo") return false;
  const bool shared = share_a_device(store, placement, device);
  const auto why_not = shared ? std::string("several ranks have the same GPU") : detail::why_no_nccl();
  LEVIN_CHECK(backend != "nccl" || why_not.empty(), "[join] backend \"nccl\" cannot be used: ", why_not);
  if (!why_not.empty()) log_info(fmt::format("communicating over Gloo, not NCCL: {}", why_not));
  return why_not.empty();
}

milliseconds setting(const std::optional<milliseconds>& asked, const char* variable, milliseconds otherwise) {
  if (asked) return *asked;
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  LEVIN_CHECK(*end == 0 && value > 0 && value < 1e9, "[join] ", variable, "=", text,
              " is not a time; give seconds, more than 0");
  return milliseconds(static_cast<int64_t>(value * 1000));
}

}  // namespace

void Collective::run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>&) {
  throw Error(fmt::format("[{}] a group of one process has nobody to communicate with", operation));
}

std::unique_ptr<Transfer> Collective::start(std::string_view operation, std::vector<Message>) {
  throw Error(fmt::format("[{}] a group of one process has nobody to send to", operation));
}

void Collective::agree(std::string_view, const std::string& call) {
  barrier(call);
}

std::string broadcast_string(Collective& group, std::string text, int src) {
  auto length = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  group.broadcast(length, src);
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  auto bytes = at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte);
  group.broadcast(bytes, src);
  return text;
}

std::vector<std::string> gather_strings(Collective& group, const std::string& text) {
  const auto lengths = group.all_gather(at::tensor({static_cast<int64_t>(text.size())}, at::kLong)).reshape({-1});
  const auto longest = lengths.max().item<int64_t>();
  auto padded = at::zeros({longest}, at::kByte);
  std::copy(text.begin(), text.end(), padded.mutable_data_ptr<uint8_t>());
  const auto all = group.all_gather(padded);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < group.size(); ++i) {
    const auto* start = all.const_data_ptr<uint8_t>() + i * longest;
    texts.emplace_back(start, start + lengths[i].item<int64_t>());
  }
  return texts;
}

Tensor all_to_all(Collective& group, const Tensor& input, std::span<const int64_t> sent,
                  std::span<const int64_t> received) {
  detail::check_dense("all_to_all", input);
  const auto ranks = static_cast<size_t>(group.size());
  LEVIN_CHECK(input.dim() > 0 && sent.size() == ranks && received.size() == ranks &&
                  std::accumulate(sent.begin(), sent.end(), int64_t{0}) == input.size(0),
              "[all_to_all] rows of ", detail::describe(input), " cannot be given to ", ranks, " ranks by ",
              fmt::format("{}", fmt::join(sent, " + ")));
  auto sizes = input.sizes().vec();
  sizes[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  if (ranks == 1) return input.detach().clone();
  // The number of rows may differ.
  group.agree("all_to_all", fmt::format("all_to_all {} [*, {}]", c10::toString(input.scalar_type()),
                                        fmt::join(input.sizes().slice(1), ", ")));
  auto output = at::empty(sizes, input.options().requires_grad(false));
  const at::NoGradGuard no_grad;
  const auto rows_of_bytes = [](const Tensor& x) {  // what any backend can carry whatever the dtype
    const auto row = x.numel() == 0 ? 0 : x.numel() / x.size(0) * static_cast<int64_t>(x.element_size());
    return x.detach().reshape({-1}).view(at::kByte).view({x.numel() == 0 ? 0 : x.size(0), row});
  };
  auto from = rows_of_bytes(input.contiguous()), to = rows_of_bytes(output);
  std::vector<int64_t> in(sent.begin(), sent.end()), out(received.begin(), received.end());
  group.run(fmt::format("all_to_all of {} bytes", from.numel()),
            [&](c10d::ProcessGroup& pg) { pg.alltoall_base(to, from, out, in)->wait(); });
  return output;
}

void report_failure(Collective& group, std::string_view line) noexcept {
  if (auto* failures = group.failures()) failures->leave({FailureReport::Kind::kFailed, std::string(line)});
}

std::shared_ptr<Collective> join_group(const Placement& placement, c10::Device device,
                                       const CollectiveOptions& options) {
  static const std::vector<std::string> known{"auto", "gloo", "nccl"};
  if (std::find(known.begin(), known.end(), options.backend) == known.end())
    fail_unknown("join", "backend", options.backend, known);
  LEVIN_CHECK(placement.world_size > 0 && placement.global_rank >= 0 && placement.global_rank < placement.world_size,
              "[join] rank ", placement.global_rank, " is not one of ", placement.world_size, " ranks");
  set_log_rank(placement.global_rank);
  // For tests: one rank communicates with itself, so that one GPU shows what NCCL does.
  const bool with_itself = placement.world_size == 1 && std::getenv("LEVIN_TEST_GROUP_OF_ONE");
  if (placement.world_size == 1 && !with_itself) return std::make_shared<SingleCollective>();

  // A program may join more than once, one group after the other, on a store that outlives them.
  static std::atomic<int> joins{0};
  const auto name = fmt::format("group_{}", joins++);
  const auto deadline = Clock::now() + options.join_timeout;
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, with_itself ? host_store("127.0.0.1", 0, options.join_timeout).store
                                                               : connect_store(placement, options.join_timeout));
  const auto left = [&] {
    return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
  };
  wait_for_all(*store, placement, deadline, options.join_timeout);

  GroupRoute route;
  route.address = with_itself ? "127.0.0.1" : detail::address_towards(placement.master_addr, placement.master_port);
  route.device = device;
  route.nccl = use_nccl(*store, placement, device, options.backend);
  route.serves_store = placement.global_rank == 0 && !placement.store_is_hosted;
  route.timeout = options.timeout;
  route.join_timeout = std::max(left(), milliseconds(5000));
  route.watch.warn_after = setting(options.wait_warning, "LEVIN_WAIT_WARNING", route.watch.warn_after);
  route.watch.silence = setting(options.silence_timeout, "LEVIN_SILENCE_TIMEOUT", route.watch.silence);
  route.watch.serves_store = placement.store_is_hosted ? -1 : 0;
  std::vector<int> names(static_cast<size_t>(placement.world_size));
  std::iota(names.begin(), names.end(), 0);
  return std::make_shared<ProcessCollective>(std::move(store), name, placement.global_rank, std::move(names),
                                             std::move(route), nullptr);
}

std::shared_ptr<Collective> split_group(Collective& parent, const std::vector<std::vector<int>>& groups,
                                        std::string_view name) {
  std::vector<bool> taken(static_cast<size_t>(parent.size()), false);
  for (const auto& ranks : groups) {
    for (const int rank : ranks) {
      LEVIN_CHECK(rank >= 0 && rank < parent.size(), "[split_group] rank ", rank, " is not one of ", parent.size(),
                  " ranks");
      LEVIN_CHECK(!taken[static_cast<size_t>(rank)], "[split_group] rank ", rank, " stands twice in the groups of \"",
                  name, "\"");
      taken[static_cast<size_t>(rank)] = true;
    }
  }
  // The rendezvous in the store needs a name that is new to it and the same on all ranks: rank 0 counts.
  auto description = fmt::format("{} {}", name, groups);
  if (auto store = parent.store(); store && parent.rank() == 0)
    description += fmt::format(" #{}", store->add("splits", 1));
  const auto agreed = broadcast_string(parent, description);
  const auto expected = fmt::format("{} {}", name, groups);
  const auto given = gather_strings(parent, expected);
  for (size_t i = 1; i < given.size(); ++i)
    LEVIN_CHECK(given[i] == given[0], "[split_group] ranks disagree: rank 0 asks for \"", given[0], "\", rank ", i,
                " for \"", given[i], "\"");
  for (size_t i = 0; i < groups.size(); ++i)
    if (std::find(groups[i].begin(), groups[i].end(), parent.rank()) != groups[i].end())
      return parent.part(groups[i], fmt::format("{}/{}", agreed, i));
  return nullptr;
}

}  // namespace levin
