#include "levin/nn/deferred_tape.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/devices/host_memory.h"

namespace levin::detail {
namespace {

/// What the data pointer of a tensor without data carries.
struct Waiting {
  std::shared_ptr<Tape> tape;
};
void drop_waiting(void* context) {
  delete static_cast<Waiting*>(context);
}

// StorageImpl can be told to throw when its data is asked for, which turns a crash into a message, but not to stop it.
// An explicit instantiation may name a private member; this is the one way to take the flag back.
template <class Tag, auto Member>
struct Reveal {
  friend auto reveal(Tag) { return Member; }
};
struct ThrowFlag {
  friend auto reveal(ThrowFlag);
};
template struct Reveal<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

void forbid_access(c10::StorageImpl& storage) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[deferred init] this tensor holds no data yet; call levin::materialize(module) before it is used");
}

void give_data(c10::StorageImpl& storage, at::DataPtr&& data) {
  storage.*reveal(ThrowFlag()) = false;
  storage.set_data_ptr_noswap(std::move(data));  // also drops the tape's context
}

void allocate(c10::StorageImpl& storage) {
  if (!tape_of(&storage)) return;
  const c10::DeviceGuard guard(storage.device());
  auto data = storage.allocator()->allocate(storage.nbytes());
  if (storage.device().is_cpu()) ask_for_large_pages(data.get(), storage.nbytes());
  give_data(storage, std::move(data));
}

std::pair<c10::DeviceType, c10::DeviceIndex> key_of(c10::Device device) {
  return {device.type(), device.index()};
}

Tensor rng_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(c10::Device device, const Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// Recorded ops run as they would have run inside the factories: no graph, no version, not recorded again.
struct ReplayGuards {
  c10::impl::ExcludeDispatchKeyGuard not_recorded{c10::DispatchKey::DeferredInit};
  c10::AutoGradMode no_grad{false};
  at::AutoDispatchBelowADInplaceOrView no_version;
};

}  // namespace

Tape* tape_of(const c10::StorageImpl* storage) {
  if (!storage) return nullptr;
  const auto& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &drop_waiting ? static_cast<Waiting*>(data.get_context())->tape.get() : nullptr;
}

Tape* tape_of(const Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tape_of(tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

Tensor Tape::make(const Tensor& like, c10::Device device) {
  auto tensor = at::empty({0}, like.options().device(device).requires_grad(false));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_nbytes(at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.element_size()));
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, new Waiting{shared_from_this()}, &drop_waiting, tensor.device()));
  forbid_access(*storage);
  storages_.push_back(tensor.storage().getWeakStorageImpl());
  return tensor;
}

void Tape::record_factory(const c10::OperatorHandle& op, torch::jit::Stack args, const Tensor& result) {
  add(op, std::move(args), result, false);
}

void Tape::record_inplace(const c10::OperatorHandle& op, torch::jit::Stack args) {
  const auto target = args.front().toTensor();
  args.front() = c10::IValue();
  add(op, std::move(args), target, true);
}

void Tape::add(const c10::OperatorHandle& op, torch::jit::Stack args, const Tensor& target, bool inplace) {
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  const auto device = target.device();
  if (random && !rngs_.contains(key_of(device))) rngs_[key_of(device)] = {rng_state(device), records_.size()};
  records_.push_back({op, std::move(args), inplace, random, false, device, target.storage().getWeakStorageImpl(),
                      target.storage().nbytes(), target.sizes().vec(), target.strides().vec(), target.storage_offset(),
                      target.scalar_type()});
}

void Tape::materialize(const std::set<c10::StorageImpl*>& storages, bool initialize) {
  const auto keep_alive = shared_from_this();
  const ReplayGuards guards;
  // Random records move the generators; those who use them meanwhile must not notice.
  std::vector<std::pair<c10::Device, Tensor>> generators;
  if (initialize)
    for (const auto& [key, rng] : rngs_) {
      const c10::Device device(key.first, key.second);
      generators.emplace_back(device, rng_state(device));
    }
  for (size_t i = 0; i < records_.size(); ++i) {
    auto& record = records_[i];
    if (record.done) continue;
    const auto target = record.target.lock();
    if (!target || !storages.contains(target.get())) continue;
    if (initialize)
      run(i);
    else
      record.random = false;
    record.done = true;
    record.args.clear();
  }
  for (auto* storage : storages) allocate(*storage);
  for (const auto& [device, state] : generators) set_rng_state(device, state);
  if (initialize) settle();
}

void Tape::run(size_t index) {
  auto& record = records_[index];
  const auto target = record.target.lock();
  if (!record.random) return execute(record, target.get());
  auto& rng = rngs_.at(key_of(record.device));
  if (record.rng_before) {
    set_rng_state(record.device, *record.rng_before);
    record.rng_before.reset();
    return execute(record, target.get());
  }
  advance(record.device, index);
  set_rng_state(record.device, rng.state);
  execute(record, target.get());
  rng.state = rng_state(record.device);
  rng.frontier = index + 1;
}

void Tape::advance(c10::Device device, size_t until) {
  auto& rng = rngs_.at(key_of(device));
  for (; rng.frontier < until; ++rng.frontier) {
    auto& record = records_[rng.frontier];
    if (!record.random || record.done || record.device != device) continue;
    record.rng_before = rng.state;
    set_rng_state(device, rng.state);
    execute(record, nullptr);
    rng.state = rng_state(device);
  }
}

void Tape::execute(Record& record, c10::StorageImpl* storage) {
  const c10::DeviceGuard guard(record.device);
  auto stack = record.args;
  if (!record.inplace) {
    record.op.callBoxed(&stack);
    auto result = stack.back().toTensor();
    auto* made = result.storage().unsafeGetStorageImpl();
    if (!storage) return;
    LEVIN_CHECK(made->nbytes() == storage->nbytes(), "[materialize] ", record.op.schema().name(), " made ",
                made->nbytes(), " bytes where ", storage->nbytes(), " were expected");
    give_data(*storage, std::move(made->_mutable_data_ptr_no_checks()));
    return;
  }
  const auto options = at::TensorOptions().dtype(record.dtype).device(record.device);
  auto tensor = at::empty({0}, options);
  if (storage) {
    allocate(*storage);
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
        c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  } else {
    auto* scratch = tensor.storage().unsafeGetStorageImpl();
    scratch->set_data_ptr_noswap(scratch->allocator()->allocate(record.nbytes));
    scratch->set_nbytes(record.nbytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(record.sizes, record.strides, record.offset);
  stack.front() = tensor;
  record.op.callBoxed(&stack);
}

void Tape::settle() {
  for (auto& [key, rng] : rngs_) {
    if (!rng.left) continue;
    const c10::Device device(key.first, key.second);
    const bool finished = std::all_of(records_.begin(), records_.end(), [&](const Record& record) {
      return record.done || !record.random || record.device != device || record.target.expired();
    });
    if (!finished || !at::equal(rng_state(device), *rng.left)) continue;
    advance(device, records_.size());
    set_rng_state(device, rng.state);
    rng.left.reset();
  }
}

std::vector<c10::intrusive_ptr<c10::StorageImpl>> Tape::waiting() const {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> result;
  for (const auto& weak : storages_)
    if (auto storage = weak.lock(); storage && tape_of(storage.get()) == this) result.push_back(std::move(storage));
  return result;
}

void Tape::before_random(c10::Device device) {
  if (!rngs_.contains(key_of(device))) return;
  const ReplayGuards guards;
  advance(device, records_.size());
  set_rng_state(device, rngs_.at(key_of(device)).state);
}

void Tape::after_random(c10::Device device) {
  if (rngs_.contains(key_of(device))) rngs_.at(key_of(device)).state = rng_state(device);
}

void Tape::end_scope() {
  for (auto& [key, rng] : rngs_) rng.left = rng_state(c10::Device(key.first, key.second));
}

}  // namespace levin::detail
