#include "levin/devices/memory_counter.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "levin/core/error.h"
#include "levin/devices/memory_listener.h"

namespace levin {

struct MemoryCounter::State {
  uint64_t first = 0;  // the first allocation that belongs to it
  int64_t allocated = 0;
  int64_t peak = 0;
  int64_t total = 0;
  int64_t allocations = 0;
};

namespace {

// Stands before torch's allocator. Storages remember the allocator they came from, and tensors may die after main():
// so there is one, and it is never destroyed.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static auto* allocator = new CountingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto data = allocate_or_tell(bytes);
    auto* context = data.get_context();
    if (!context) return data;
    const auto deleter = data.get_deleter();
    {
      std::lock_guard lock(mutex_);
      live_[context] = {static_cast<int64_t>(bytes), ++serial_, deleter};
      for (auto* counter : counters_) {
        counter->allocated += static_cast<int64_t>(bytes);
        counter->peak = std::max(counter->peak, counter->allocated);
        counter->total += static_cast<int64_t>(bytes);
        ++counter->allocations;
      }
      if (listener_) listener_->allocated(at::kCPU, reinterpret_cast<uint64_t>(context), static_cast<int64_t>(bytes));
    }
    if (!data.compare_exchange_deleter(deleter, &free_counted)) forget(context);
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override { return inner()->raw_deleter() ? &free_counted : nullptr; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return inner()->is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, size_t count) const override { inner()->copy_data(to, from, count); }

  void add(MemoryCounter::State* counter) {
    std::lock_guard lock(mutex_);
    counter->first = serial_ + 1;
    counters_.push_back(counter);
    stand_before();
  }

  void remove(MemoryCounter::State* counter) {
    std::lock_guard lock(mutex_);
    std::erase(counters_, counter);
    step_aside();
  }

  void set_listener(MemoryListener* listener) {
    std::lock_guard lock(mutex_);
    LEVIN_CHECK(!listener || !listener_, "[memory] the memory of the CPU has a listener already");
    listener_ = listener;
    if (listener)
      stand_before();
    else
      step_aside();
  }

  template <class F>
  auto locked(F&& f) {
    std::lock_guard lock(mutex_);
    return f();
  }

 private:
  struct Live {
    int64_t bytes = 0;
    uint64_t serial = 0;
    c10::DeleterFnPtr deleter = nullptr;
  };

  c10::Allocator* inner() const {
    std::lock_guard lock(mutex_);
    return inner_;
  }

  c10::DataPtr allocate_or_tell(size_t bytes) {
    try {
      return inner()->allocate(bytes);
    } catch (const std::exception&) {
      MemoryListener* listener = locked([&] { return listener_; });
      if (listener) listener->out_of_memory(at::kCPU, static_cast<int64_t>(bytes), -1);
      throw;
    }
  }

  void stand_before() {
    auto* current = c10::GetAllocator(at::kCPU);
    if (current == this) return;
    inner_ = current;
    // torch does not tell the priority of the allocator in place: the lowest that is accepted replaces it.
    for (; priority_ < 255; ++priority_) {
      c10::SetAllocator(at::kCPU, this, static_cast<uint8_t>(priority_));
      if (c10::GetAllocator(at::kCPU) == this) return;
    }
    c10::SetAllocator(at::kCPU, this, 255);
  }

  void step_aside() {
    if (counters_.empty() && !listener_ && c10::GetAllocator(at::kCPU) == this)
      c10::SetAllocator(at::kCPU, inner_, static_cast<uint8_t>(priority_));
  }

  c10::DeleterFnPtr forget(void* context) {
    std::lock_guard lock(mutex_);
    const auto found = live_.find(context);
    // Some take memory from the allocator that was there before and give it to the one that is there now.
    if (found == live_.end()) return inner_->raw_deleter();
    const auto gone = found->second;
    live_.erase(found);
    for (auto* counter : counters_)
      if (gone.serial >= counter->first) counter->allocated -= gone.bytes;
    if (listener_) listener_->freed(at::kCPU, reinterpret_cast<uint64_t>(context));
    return gone.deleter;
  }

  static void free_counted(void* context) { instance().forget(context)(context); }

  mutable std::mutex mutex_;
  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  int priority_ = 0;
  uint64_t serial_ = 0;
  std::unordered_map<void*, Live> live_;
  std::vector<MemoryCounter::State*> counters_;
  MemoryListener* listener_ = nullptr;
};

}  // namespace

void detail::set_cpu_memory_listener(MemoryListener* listener) {
  CountingAllocator::instance().set_listener(listener);
}

MemoryCounter::MemoryCounter() : state_(std::make_unique<State>()) {
  CountingAllocator::instance().add(state_.get());
}
MemoryCounter::~MemoryCounter() {
  CountingAllocator::instance().remove(state_.get());
}

int64_t MemoryCounter::allocated() const {
  return CountingAllocator::instance().locked([&] { return state_->allocated; });
}
int64_t MemoryCounter::peak() const {
  return CountingAllocator::instance().locked([&] { return state_->peak; });
}
int64_t MemoryCounter::total() const {
  return CountingAllocator::instance().locked([&] { return state_->total; });
}
int64_t MemoryCounter::allocations() const {
  return CountingAllocator::instance().locked([&] { return state_->allocations; });
}
void MemoryCounter::reset_peak() {
  CountingAllocator::instance().locked([&] { state_->peak = state_->allocated; });
}

}  // namespace levin
