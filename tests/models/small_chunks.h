#pragma once

#include <cstdint>

#include "levin/models/language/weight_plan.h"

namespace levin::testing {

/// Weights are read in chunks of that many bytes, or of one row.
class SmallChunks {
 public:
  explicit SmallChunks(int64_t bytes) { models::detail::chunk_of_read() = bytes; }
  ~SmallChunks() { models::detail::chunk_of_read() = before_; }
  SmallChunks(const SmallChunks&) = delete;
  SmallChunks& operator=(const SmallChunks&) = delete;

 private:
  int64_t before_ = models::detail::chunk_of_read();
};

}  // namespace levin::testing
