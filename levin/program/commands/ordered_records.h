#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "levin/io/records/records.h"

namespace levin::cli {

/// Records 0 to count - 1, made by several threads and given out in order. Only a few are made ahead.
class OrderedRecords {
 public:
  /// Without workers the records are made where they are asked for.
  OrderedRecords(int64_t count, int workers, std::function<Record(int64_t)> make);
  /// Waits for the records under way, and makes no more.
  ~OrderedRecords();
  OrderedRecords(const OrderedRecords&) = delete;
  OrderedRecords& operator=(const OrderedRecords&) = delete;

  /// The next one; throws what making it threw.
  Record next();

 private:
  struct Slot {
    std::optional<Record> record;
    std::exception_ptr error;
  };
  void work();

  int64_t count_;
  std::function<Record(int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable ready_, free_;
  std::vector<Slot> slots_;  // of record i: i % size
  int64_t begun_ = 0;
  int64_t given_ = 0;
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace levin::cli
