#include "levin/nn/weight_stream.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/devices/graphs.h"
#include "levin/devices/hollow_memory.h"
#include "levin/devices/host_memory.h"
#include "levin/devices/streams.h"
#include "levin/nn/named_tensors.h"

namespace levin {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Unit& unit_of(torch::nn::Module& module) {
  auto* unit = dynamic_cast<Unit*>(&module);
  LEVIN_CHECK(unit, "[weight stream] ", module.name(), " is no unit: declare it with LEVIN_MODULE");
  return *unit;
}

/// "cuda" is the current one.
c10::Device with_index(c10::Device device) {
  return device.has_index() || !detail::has_streams(device) ? device
                                                            : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Tensors have their memory for the life of it. Also where forward throws, `used` comes behind the kernels that it has
/// started.
class Shown {
 public:
  Shown(const Tensor& tensor, const Tensor& memory, std::optional<c10::Event>& used, c10::Device device)
      : tensor_(tensor), used_(used), device_(device) {
    detail::show_memory(tensor, memory);
  }
  ~Shown() {
    detail::set_memory(tensor_, false);
    if (!used_) return;
    try {
      used_->record(detail::current_stream(device_));
    } catch (const std::exception&) {  // the device is lost, which the next call tells
    }
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  const Tensor& tensor_;
  std::optional<c10::Event>& used_;
  c10::Device device_;
};

}  // namespace

FlatTensors::FlatTensors(const std::vector<torch::nn::Module*>& modules) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto* module : modules)
    for (const auto& [name, tensor] : detail::named_tensors(*module)) {
      if (!known.insert(tensor.unsafeGetTensorImpl()).second) continue;
      tensors.push_back(tensor);
      offsets.push_back(bytes);
      bytes = aligned(bytes + static_cast<int64_t>(tensor.nbytes()));
    }
}

std::vector<Tensor> FlatTensors::views(const Tensor& flat) const {
  std::vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    result.push_back(flat.narrow(0, offsets[i], static_cast<int64_t>(tensor.nbytes()))
                         .view(tensor.scalar_type())
                         .view(tensor.sizes()));
  }
  return result;
}

void FlatTensors::copy_to(const Tensor& flat) const {
  const c10::AutoGradMode no_grad(false);
  const auto places = views(flat);
  for (size_t i = 0; i < tensors.size(); ++i) places[i].copy_(tensors[i]);
}

WeightStream::WeightStream(c10::Device device) : device_(with_index(device)) {
  if (detail::has_streams(device_))
    side_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_, /*isHighPriority=*/true);
}

WeightStream::~WeightStream() {
  // Nothing writes to the buffers when their memory goes.
  try {
    reader_.join();
    if (side_) side_->synchronize();
  } catch (const std::exception&) {  // a read that nobody has waited for
  }
}

void WeightStream::add(std::string name, const std::vector<torch::nn::Module*>& modules, const FlatTensors& flat,
                       WeightSource source) {
  LEVIN_CHECK(!buffers_[0].memory.defined(), "[weight stream] \"", name, "\" comes after the first pass");
  LEVIN_CHECK(source.host.defined() != static_cast<bool>(source.read), "[weight stream] \"", name,
              "\" needs one source");
  LEVIN_CHECK(!source.host.defined() || source.host.numel() == flat.bytes, "[weight stream] \"", name, "\" has ",
              flat.bytes, " bytes, its source ", source.host.numel());
  const c10::AutoGradMode no_grad(false);
  const auto shown = detail::hollow(flat.bytes, device_, at::kByte);
  const auto places = flat.views(shown);
  for (size_t i = 0; i < places.size(); ++i) {
    auto tensor = flat.tensors[i];
    tensor.set_data(places[i]);
    tensor.set_requires_grad(false);
  }
  detail::set_memory(shown, false);
  entries_.push_back({std::move(name), flat.bytes, shown, std::move(source)});
  for (auto* module : modules) {
    auto& unit = unit_of(*module);
    callers_[&unit] = {entries_.size() - 1, first_};
    if (latest_added_) callers_[latest_added_].next = &unit;
    if (!first_) first_ = &unit;
    callers_[&unit].next = first_;
    latest_added_ = &unit;
    unit.attach(shared_from_this(), Order::kSharding).keep();
  }
}

int64_t WeightStream::buffer_bytes() const {
  int64_t largest = 0, all = 0;
  for (const auto& entry : entries_) {
    largest = std::max(largest, entry.bytes);
    all += entry.bytes;
  }
  return entries_.size() < 2 ? all : 2 * largest;
}

void WeightStream::make_buffers() {
  if (buffers_[0].memory.defined()) return;
  int64_t largest = 0, largest_read = 0;
  for (const auto& entry : entries_) {
    largest = std::max(largest, entry.bytes);
    if (entry.source.read) largest_read = std::max(largest_read, entry.bytes);
  }
  for (size_t i = 0; i < std::min<size_t>(2, entries_.size()); ++i) {
    auto& buffer = buffers_[i];
    buffer.memory = at::empty({largest}, at::TensorOptions().dtype(at::kByte).device(device_));
    if (!side_) {
      on_large_pages(buffer.memory);
      continue;
    }
    buffer.arrived.emplace(device_.type());
    buffer.used.emplace(device_.type());
    if (largest_read > 0) buffer.staged = page_locked(largest_read, at::kByte);
  }
  // The memory may still be in use by what freed it.
  if (side_) detail::order_after(*side_, detail::current_stream(device_));
}

WeightStream::Buffer* WeightStream::find(size_t entry) {
  for (auto& buffer : buffers_)
    if (buffer.entry == entry) return &buffer;
  return nullptr;
}

void WeightStream::begin(Buffer& buffer, size_t index) {
  auto& entry = entries_[index];
  buffer.entry = index;
  buffer.is_sent = false;
  streamed_ += entry.bytes;
  if (!side_) {  // nothing computes with the buffer now: calls are over when they return
    reader_.run([&entry, into = buffer.memory.narrow(0, 0, entry.bytes)] {
      const c10::AutoGradMode no_grad(false);
      if (entry.source.read)
        entry.source.read(into);
      else
        into.copy_(entry.source.host);
    });
  } else if (entry.source.read) {
    reader_.run([&entry, &buffer] {
      const c10::AutoGradMode no_grad(false);
      buffer.arrived->synchronize();  // the last copy from there
      entry.source.read(buffer.staged.narrow(0, 0, entry.bytes));
    });
  }
}

void WeightStream::send(Buffer& buffer) {
  if (buffer.is_sent) return;
  const auto& entry = entries_[*buffer.entry];
  try {
    if (!side_ || entry.source.read) reader_.join();
    if (side_) {
      buffer.used->block(*side_);
      const c10::StreamGuard on_side(*side_);
      auto into = buffer.memory.narrow(0, 0, entry.bytes);
      into.copy_(entry.source.read ? buffer.staged.narrow(0, 0, entry.bytes) : entry.source.host,
                 /*non_blocking=*/true);
      buffer.arrived->record(*side_);
    }
  } catch (...) {
    buffer.entry.reset();
    throw;
  }
  buffer.is_sent = true;
}

WeightStream::Buffer& WeightStream::bring(size_t entry) {
  auto* buffer = find(entry);
  if (!buffer) {
    ++misses_;
    // What was read ahead in vain: the buffer is free when it is there.
    buffer = &buffers_[in_use_ == &buffers_[0] && entries_.size() > 1 ? 1 : 0];
    if (buffer->entry) send(*buffer);
    begin(*buffer, entry);
  }
  send(*buffer);
  if (side_) buffer->arrived->block(detail::current_stream(device_));
  return *buffer;
}

void WeightStream::around(Call& call) {
  detail::refuse_capture("weights are streamed");
  LEVIN_CHECK(!c10::GradMode::is_enabled(), "[weight stream] streamed weights do not train: compute without gradients");
  const c10::AutoGradMode no_grad(false);
  make_buffers();
  const auto* unit = &call.unit();
  auto& caller = callers_.at(unit);
  if (latest_) callers_.at(latest_).next = unit;
  latest_ = unit;

  auto& buffer = bring(caller.entry);
  in_use_ = &buffer;
  const auto next = callers_.at(caller.next).entry;
  auto& other = buffers_[&buffer == &buffers_[0] ? 1 : 0];
  const bool is_ahead = !find(next);
  if (is_ahead) begin(other, next);
  const auto& entry = entries_[caller.entry];
  {
    const Shown shown(entry.shown, buffer.memory, buffer.used, device_);
    call.proceed();
  }
  // Behind the kernels of this unit: the host may have to wait for a disk here, while the device computes.
  if (is_ahead && side_) send(other);
}

bool has_streamed_units(const torch::nn::Module& model) {
  const auto modules = model.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* unit = dynamic_cast<const Unit*>(module.get());
    return unit && unit->has_interceptor(Order::kSharding);
  });
}

}  // namespace levin
