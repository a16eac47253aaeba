#include "levin/program/commands/ordered_records.h"

#include "levin/core/error.h"

namespace levin::cli {
namespace {

constexpr size_t kAheadPerWorker = 8;

}  // namespace

OrderedRecords::OrderedRecords(int64_t count, int workers, std::function<Record(int64_t)> make)
    : count_(count), make_(std::move(make)), slots_(kAheadPerWorker * static_cast<size_t>(workers)) {
  for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
}

OrderedRecords::~OrderedRecords() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  free_.notify_all();
}

void OrderedRecords::work() {
  const auto ahead = static_cast<int64_t>(slots_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    free_.wait(lock, [&] { return stop_ || begun_ == count_ || begun_ < given_ + ahead; });
    if (stop_ || begun_ == count_) return;
    const int64_t index = begun_++;
    lock.unlock();
    Slot slot;
    try {
      slot.record = make_(index);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    slots_[static_cast<size_t>(index % ahead)] = std::move(slot);
    if (index == given_) ready_.notify_one();
  }
}

Record OrderedRecords::next() {
  LEVIN_CHECK(given_ < count_, "[levin pack] all ", count_, " records were given out");
  if (threads_.empty()) return make_(given_++);
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(given_) % slots_.size()];
  ready_.wait(lock, [&] { return slot.record || slot.error; });
  Slot done = std::exchange(slot, {});
  ++given_;
  lock.unlock();
  free_.notify_all();
  if (done.error) std::rethrow_exception(done.error);
  return *std::move(done.record);
}

}  // namespace levin::cli
