#include "levin/distributed/group.h"

#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/devices/graphs.h"
#include "levin/distributed/checks.h"
#include "levin/distributed/gloo.h"
#include "levin/distributed/nccl.h"
#include "levin/distributed/single.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = FailureReport::Kind;

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kSum:
    case ReduceOp::kMean:  // divided behind the sum
      return c10d::ReduceOp::SUM;
  }
  return c10d::ReduceOp::SUM;
}

/// The message of a backend's exception without the source position that Gloo puts in front.
std::string plain_cause(const std::exception& error) {
  std::string line = one_line(error);
  if (line.starts_with('['))
    if (const auto end = line.find("] "); end != std::string::npos) line = line.substr(end + 2);
  return line;
}

/// The same number on every rank, which std::hash does not promise.
int64_t hash_of(std::string_view text) {
  uint64_t hash = 1469598103934665603ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return static_cast<int64_t>(hash);
}

/// Ends a capture of a call that other ranks may not make, or run eagerly.
void check_capture(std::string_view operation) {
  if (detail::is_capturing() && !detail::current_step()->ranks_agree)
    detail::refuse_capture(
        fmt::format("it communicates ({}), and ranks need not make as many calls of it as others", operation));
}

/// Returns when all graphs that use it are gone; in a thread of its own that may be after its timeout, which throws.
void abort_nccl(const c10::intrusive_ptr<c10d::Backend>& nccl) noexcept {
  try {
    if (nccl) nccl->abort();
  } catch (const std::exception&) {  // the kernels have been told to end
  }
}

/// Contiguous bytes of a tensor, without its history: what any backend can carry whatever the dtype.
Tensor as_bytes(const Tensor& contiguous) {
  return contiguous.detach().reshape({-1}).view(at::kByte);
}

}  // namespace

/// What watch_work was given, oldest first.
struct ProcessCollective::PendingWork {
  using Work = std::pair<std::function<bool()>, Clock::time_point>;

  std::mutex mutex;
  std::deque<Work> works;

  void add(std::function<bool()> is_done) {
    constexpr size_t kMost = 64;  // the oldest ones say enough
    const std::lock_guard lock(mutex);
    if (works.size() < kMost) works.emplace_back(std::move(is_done), Clock::now());
  }
  bool is_late(std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex);
    try {
      while (!works.empty() && works.front().first()) works.pop_front();
    } catch (const std::exception&) {  // a device that has failed says so to whoever uses it
      works.clear();
    }
    return !works.empty() && Clock::now() - works.front().second > timeout;
  }
};

ProcessCollective::ProcessCollective(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank,
                                     std::vector<int> names, GroupRoute route, std::shared_ptr<FailureExchange> parent,
                                     std::shared_ptr<detail::RankWatch> watch)
    : store_(std::move(store)),
      name_(std::move(name)),
      rank_(rank),
      names_(std::move(names)),
      route_(std::move(route)),
      trace_(std::make_shared<detail::GroupTrace>(name_, names_)),
      watch_(std::move(watch)) {
  const auto apart = [&](const char* key) { return c10::make_intrusive<c10d::PrefixStore>(key, store_); };
  try {
    control_ = detail::make_gloo(apart("control"), rank_, size(), route_.address, route_.join_timeout, 1);
    gloo_ =
        detail::make_gloo(apart("data"), rank_, size(), route_.address, route_.join_timeout, 2, trace_, route_.traffic);
    control_->setTimeout(route_.timeout);
    gloo_->setTimeout(route_.timeout);
    if (route_.nccl)
      nccl_ = detail::make_nccl(apart("nccl"), rank_, size(), route_.device, route_.timeout, route_.traffic);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(fmt::format("[join] rank {} could not be connected to the others: {}",
                            names_[static_cast<size_t>(rank_)], plain_cause(error)));
  }

  using Type = c10d::ProcessGroup::BackendType;
  process_group_ = c10::make_intrusive<c10d::ProcessGroup>(apart("group"), rank_, size());
  process_group_->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo_);
  process_group_->setBackend(c10::DeviceType::CUDA, nccl_ ? Type::NCCL : Type::GLOO, nccl_ ? nccl_ : gloo_);
  process_group_->setDefaultBackend(nccl_ ? Type::NCCL : Type::GLOO);
  process_group_->setGroupName(name_);

  // Of a connection of its own: what waits in the store for others must not keep this rank from saying that it lives.
  if (!watch_) watch_ = std::make_shared<detail::RankWatch>(store_->clone(), rank_, size(), route_.watch);
  FailureExchange::Hooks hooks;
  hooks.doing = [watch = std::weak_ptr(watch_)](int other) {
    const auto alive = watch.lock();
    return alive ? alive->describe(other) : std::string();
  };
  hooks.abort = [control = control_, gloo = gloo_, nccl = nccl_, before = route_.before_abort] {
    if (*before) (*before)();
    control->abort();
    gloo->abort();
    abort_nccl(nccl);
  };
  hooks.closed_peers = [control = control_, gloo = gloo_] {
    auto closed = detail::gloo_closed_peers(*control);
    for (const int peer : detail::gloo_closed_peers(*gloo))
      if (std::find(closed.begin(), closed.end(), peer) == closed.end()) closed.push_back(peer);
    return closed;
  };
  const auto patience = std::clamp(route_.timeout, std::chrono::milliseconds(200), std::chrono::milliseconds(2000));
  failures_ = std::make_shared<FailureExchange>(store_, rank_, names_, std::move(hooks), patience, std::move(parent));
  // Work on a GPU does not end when a connection closes; somebody must look.
  if (nccl_) {
    pending_ = std::make_shared<PendingWork>();
    const auto look = [pending = pending_, failures = failures_, timeout = route_.timeout] {
      if (failures->failed() || !pending->is_late(timeout)) return;
      failures->conclude(fmt::format("[compiled step] its collectives did not end within {:g} s",
                                     std::chrono::duration<double>(timeout).count()),
                         /*store_answers=*/true);
    };
    watcher_.emplace(
        failures_, [nccl = nccl_] { abort_nccl(nccl); }, std::chrono::milliseconds(500), look);
  }
  watch_->add(trace_, failures_);
  // A rank that was quick to connect may be as quick to leave: not before the others are connected.
  if (size() > 1) meet("join", "join");
}

ProcessCollective::~ProcessCollective() {
  if (!home_.is_here()) {
    // The connections are the rank's, which others believe to speak, and the threads that serve them are not here.
    new auto(std::tuple(store_, control_, gloo_, nccl_, process_group_, failures_, pending_, trace_, watch_));
    return;
  }
  watcher_.reset();
  const auto place = watch_->place();
  watch_.reset();  // before this rank says that it is done: the one that serves the store may go then
  if (!failures_->failed()) {
    if (std::uncaught_exceptions() > 0)
      failures_->leave_by_exception();
    else
      failures_->leave({Kind::kLeft, place});
    try {
      if (nccl_ && !failures_->failed()) nccl_->shutdown();
    } catch (const std::exception&) {  // the connections close with the process
    }
  }
  if (route_.serves_store) failures_->wait_for_others(std::chrono::milliseconds(2000));
}

c10::intrusive_ptr<c10d::ProcessGroup> ProcessCollective::process_group() const {
  return process_group_;
}

c10::intrusive_ptr<c10d::Store> ProcessCollective::store() const {
  return store_;
}

void ProcessCollective::watch_work(std::function<bool()> is_done) {
  if (pending_) pending_->add(std::move(is_done));
}

c10d::Backend& ProcessCollective::backend(const Tensor& tensor) const {
  return tensor.is_cuda() && nccl_ ? *nccl_ : *gloo_;
}

void ProcessCollective::guarded(const std::string& operation, const std::function<void()>& body) {
  failures_->check(operation);
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Somebody has ended the group meanwhile and knows more.
    if (const auto reason = failures_->reason(); !reason.empty()) throw Error(reason);
    const auto cause = plain_cause(error);
    const bool timed_out = cause.find("imed out") != std::string::npos;
    const auto text =
        timed_out ? fmt::format("{} within {:g} s", operation, std::chrono::duration<double>(route_.timeout).count())
                  : operation;
    failures_->fail(operation, {timed_out ? Kind::kTimedOut : Kind::kWaiting, text}, cause);
  }
}

void ProcessCollective::run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) {
  const detail::GroupTrace::Label label(operation);
  check_capture(operation);
  guarded(std::string(operation), [&] { body(*process_group_); });
}

std::vector<int64_t> ProcessCollective::meet(const std::string& operation, const std::string& call, int64_t number) {
  if (detail::is_capturing())
    detail::refuse_capture(fmt::format("it calls {}, where ranks wait for each other on the host", call));
  constexpr int64_t kNumbers = 3;
  auto mine = at::tensor({++sequence_, hash_of(call), number}, at::kLong);
  auto all = at::empty({size() * kNumbers}, at::kLong);
  {
    const detail::GroupTrace::Meeting meeting(*trace_, call);
    guarded(operation, [&] { control_->_allgather_base(all, mine)->wait(); });
  }
  const auto* row = all.const_data_ptr<int64_t>();
  const auto* own = mine.const_data_ptr<int64_t>();
  std::vector<int64_t> numbers;
  for (int i = 0; i < size(); ++i, row += kNumbers) {
    if (row[0] != own[0] || row[1] != own[1]) fail_disagreement(operation, call);
    numbers.push_back(row[2]);
  }
  return numbers;
}

void ProcessCollective::begin(const std::string& operation, const std::string& call, const Tensor& tensor) {
  if (!detail::is_capturing()) {
    meet(operation, call);
    return;
  }
  check_capture(operation);
  if (!tensor.is_cuda() || !nccl_)
    detail::refuse_capture(fmt::format("it calls {} over Gloo, which is work of the host", call));
}

void ProcessCollective::fail_disagreement(const std::string& operation, const std::string& call) {
  // Every rank sees that not all are equal, so every rank comes here and posts what it called.
  std::string line;
  try {
    const auto key = [&](int rank) { return fmt::format("call/{}/{}", sequence_, rank); };
    store_->set(key(rank_), fmt::format("{}\n{}", operation, call));
    std::vector<std::string> keys;
    for (int i = 0; i < size(); ++i) keys.push_back(key(i));
    store_->wait(keys, std::min(route_.timeout, std::chrono::milliseconds(5000)));
    std::string first;
    std::vector<std::pair<std::string, std::vector<int>>> callers;
    for (int i = 0; i < size(); ++i) {
      const auto text = store_->get_to_str(keys[static_cast<size_t>(i)]);
      if (i == 0) first = text.substr(0, text.find('\n'));
      const auto what = text.substr(text.find('\n') + 1);
      auto it = std::find_if(callers.begin(), callers.end(), [&](const auto& entry) { return entry.first == what; });
      if (it == callers.end()) it = callers.insert(it, {what, {}});
      it->second.push_back(names_[static_cast<size_t>(i)]);
    }
    for (const auto& [what, ranks] : callers)
      line += fmt::format("{}{} {} {}", line.empty() ? "" : ", ", rank_list(ranks),
                          ranks.size() == 1 ? "calls" : "call", what);
    line = fmt::format("[{}] ranks disagree: {}", first, line);
  } catch (const std::exception&) {
    line = fmt::format("[{}] ranks disagree: {} calls {}, others call something else", operation,
                       rank_list(std::array{names_[static_cast<size_t>(rank_)]}), call);
  }
  failures_->fail(operation, {Kind::kShared, line});
}

Tensor ProcessCollective::reduced(const Tensor& input, ReduceOp op,
                                  const std::function<Tensor(const Tensor&, ReduceOp)>& exchange) const {
  const auto dtype = input.scalar_type();
  auto sent = input.detach();
  if (dtype == at::kBool) {
    // Among truths the sum and the maximum are "any", the product and the minimum "all".
    op = op == ReduceOp::kSum ? ReduceOp::kMax : op == ReduceOp::kProduct ? ReduceOp::kMin : op;
    sent = sent.to(at::kByte);
  } else if (dtype == at::kHalf || dtype == at::kBFloat16) {
    sent = sent.to(at::kFloat);  // rounded once, at the end, and no overflow on the way
  } else if (dtype == at::kShort) {
    sent = sent.to(at::kInt);
  } else if (input.is_complex()) {
    sent = at::view_as_real(sent.resolve_conj());
  }
  sent = sent.clone(at::MemoryFormat::Contiguous);
  auto result = exchange(sent, op);
  if (op == ReduceOp::kMean) result.div_(size());
  if (input.is_complex()) return at::view_as_complex(result);
  return result.to(dtype);
}

void ProcessCollective::all_reduce(Tensor& tensor, ReduceOp op) {
  const std::string operation = "all_reduce";
  LEVIN_CHECK(tensor.defined(), "[all_reduce] the tensor is undefined");
  begin(operation,
        fmt::format("all_reduce {}{}", detail::describe(tensor),
                    op == ReduceOp::kSum ? "" : fmt::format(" {}", detail::word_of(op))),
        tensor);
  detail::check_reducible(operation, tensor, op);
  if (tensor.numel() == 0) return;
  at::NoGradGuard no_grad;
  guarded(operation, [&] {
    tensor.detach().copy_(reduced(tensor, op, [&](const Tensor& sent, ReduceOp how) {
      std::vector<Tensor> tensors{sent};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d_op(how);
      backend(sent).allreduce(tensors, options)->wait();
      return sent;
    }));
  });
}

Tensor ProcessCollective::reduce_scatter(const Tensor& input, ReduceOp op) {
  const std::string operation = "reduce_scatter";
  LEVIN_CHECK(input.defined(), "[reduce_scatter] the tensor is undefined");
  begin(operation,
        fmt::format("reduce_scatter {}{}", detail::describe(input),
                    op == ReduceOp::kSum ? "" : fmt::format(" {}", detail::word_of(op))),
        input);
  detail::check_reducible(operation, input, op);
  detail::check_scatterable(input, size());
  auto sizes = input.sizes().vec();
  sizes[0] /= size();
  if (input.numel() == 0) return at::empty(sizes, input.options());
  Tensor output;
  at::NoGradGuard no_grad;
  guarded(operation, [&] {
    output = reduced(input, op, [&](const Tensor& sent, ReduceOp how) {
      auto part_sizes = sent.sizes().vec();
      part_sizes[0] /= size();
      auto received = at::empty(part_sizes, sent.options());
      auto whole = sent;
      c10d::ReduceScatterOptions options;
      options.reduceOp = c10d_op(how);
      backend(sent)._reduce_scatter_base(received, whole, options)->wait();
      return received;
    });
  });
  return output;
}

Tensor ProcessCollective::all_gather(const Tensor& tensor) {
  const std::string operation = "all_gather";
  LEVIN_CHECK(tensor.defined(), "[all_gather] the tensor is undefined");
  begin(operation, fmt::format("all_gather {}", detail::describe(tensor)), tensor);
  detail::check_dense(operation, tensor);
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  auto output = at::empty(sizes, tensor.options().requires_grad(false));
  if (tensor.numel() == 0) return output;
  at::NoGradGuard no_grad;
  guarded(operation, [&] {
    auto sent = as_bytes(tensor.contiguous());
    auto received = as_bytes(output);
    backend(tensor)._allgather_base(received, sent)->wait();
  });
  return output;
}

void ProcessCollective::broadcast(Tensor& tensor, int src) {
  const std::string operation = "broadcast";
  LEVIN_CHECK(tensor.defined(), "[broadcast] the tensor is undefined");
  begin(operation, fmt::format("broadcast {} from rank {}", detail::describe(tensor), src), tensor);
  detail::check_dense(operation, tensor);
  detail::check_source(operation, src, size());
  if (tensor.numel() == 0) return;
  at::NoGradGuard no_grad;
  guarded(operation, [&] {
    auto contiguous = tensor.detach().contiguous();
    std::vector<Tensor> tensors{as_bytes(contiguous)};
    c10d::BroadcastOptions options;
    options.rootRank = src;
    backend(tensor).broadcast(tensors, options)->wait();
    if (rank_ != src && !contiguous.is_alias_of(tensor)) tensor.detach().copy_(contiguous);
  });
}

void ProcessCollective::barrier(std::string_view name) {
  const auto call = name == "barrier" ? std::string("barrier") : fmt::format("barrier \"{}\"", name);
  meet(call, call);
}

void ProcessCollective::barrier_without_timeout(std::string_view name) {
  struct Patient {
    c10d::Backend& backend;
    std::chrono::milliseconds before;
    Patient(c10d::Backend& of, std::chrono::milliseconds usual) : backend(of), before(usual) {
      backend.setTimeout(std::chrono::hours(24 * 365));
    }
    ~Patient() { backend.setTimeout(before); }
  } const patient(*control_, route_.timeout);
  barrier(name);
}

std::shared_ptr<Collective> ProcessCollective::part(const std::vector<int>& ranks, const std::string& name) {
  if (ranks.size() == 1) return std::make_shared<SingleCollective>();
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(names_[static_cast<size_t>(rank)]);
  auto route = route_;
  route.serves_store = false;
  const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  return std::make_shared<ProcessCollective>(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                             fmt::format("{}/{}", name_, name), own, std::move(names), std::move(route),
                                             failures_, watch_);
}

}  // namespace levin
