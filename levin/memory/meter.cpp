#include "levin/memory/meter.h"

#include <atomic>

#include <c10/core/Allocator.h>

#include "levin/core/error.h"

namespace levin::detail {

struct MetaMeter::State {
  Rounding rounding = Rounding::kNone;
  std::vector<Event> events;
  int32_t storages = 0;
  int64_t live = 0;
  /// Storages outlive the meter at times; nobody counts them any more.
  bool open = true;
};

namespace {

struct MeteredBlock {
  std::shared_ptr<MetaMeter::State> state;
  int32_t id;
  int64_t bytes;
};

thread_local std::shared_ptr<MetaMeter::State> meter_here;
std::atomic<bool> meter_taken = false;

void release_metered(void* context) {
  const std::unique_ptr<MeteredBlock> block(static_cast<MeteredBlock*>(context));
  auto& state = *block->state;
  if (!state.open) return;
  state.live -= block->bytes;
  state.events.push_back({block->id, -block->bytes});
}

/// Stands before torch's allocator of meta tensors, which gives out nothing and knows nothing.
class MeterAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!meter_here) return before->allocate(bytes);
    auto& state = *meter_here;
    const auto rounded = round_allocation(static_cast<int64_t>(bytes), state.rounding);
    const auto id = state.storages++;
    state.live += rounded;
    state.events.push_back({id, rounded});
    auto block = std::make_unique<MeteredBlock>(MeteredBlock{meter_here, id, rounded});
    return {nullptr, block.release(), &release_metered, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

  c10::Allocator* before = nullptr;
};

MeterAllocator& meter_allocator() {
  static MeterAllocator it;  // storages may outlive every meter
  return it;
}

}  // namespace

int64_t round_allocation(int64_t bytes, Rounding rounding) {
  if (rounding == Rounding::kNone || bytes == 0) return bytes;
  constexpr int64_t kBlock = 512, kMiB = 1 << 20, kSegment = 2 * kMiB;
  const int64_t blocks = (bytes + kBlock - 1) / kBlock * kBlock;
  if (blocks < 10 * kMiB) return blocks;
  const int64_t segments = (blocks + kSegment - 1) / kSegment * kSegment;
  return segments - blocks <= kMiB ? segments : blocks;
}

MetaMeter::MetaMeter(Rounding rounding) : state_(std::make_shared<State>()) {
  LEVIN_CHECK(!meter_taken.exchange(true),
              "[estimate_memory] another estimate is running in this process; there can "
              "be one at a time");
  state_->rounding = rounding;
  auto& allocator = meter_allocator();
  allocator.before = c10::GetAllocator(c10::kMeta);
  c10::SetAllocator(c10::kMeta, &allocator, /*priority=*/255);
  meter_here = state_;
}

MetaMeter::~MetaMeter() {
  meter_here.reset();
  state_->open = false;
  c10::SetAllocator(c10::kMeta, meter_allocator().before, /*priority=*/255);
  meter_taken = false;
}

const std::vector<MetaMeter::Event>& MetaMeter::events() const {
  return state_->events;
}
int32_t MetaMeter::storages() const {
  return state_->storages;
}
int64_t MetaMeter::live() const {
  return state_->live;
}

int32_t MetaMeter::id_of(const Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto& pointer = tensor.storage().data_ptr();
  if (pointer.get_deleter() != &release_metered) return -1;
  const auto* block = static_cast<const MeteredBlock*>(pointer.get_context());
  return block->state == state_ ? block->id : -1;
}

}  // namespace levin::detail
