#include "levin/core/parallel.h"

#include <algorithm>
#include <atomic>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

namespace levin {

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  const int64_t count = end - begin;
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (count + grain - 1) / grain);
  if (threads <= 1 || at::in_parallel_region()) return body(begin, end);
  // Several parts for each thread, so that one that is late does not keep the others waiting.
  const int64_t part = std::max(grain, count / (threads * 4));
  std::atomic<int64_t> next = begin;
  const auto work = [&] {
    for (int64_t from = next.fetch_add(part); from < end; from = next.fetch_add(part))
      body(from, std::min(from + part, end));
  };
  // An iterator of torch's runs on torch's threads: one byte for each of them, none of which is ever read.
  at::Tensor bytes = at::empty({threads}, at::kByte);
  at::TensorIterator::nullary_op(bytes).for_each([&](char**, const int64_t*, int64_t) { work(); }, /*grain_size=*/1);
}

}  // namespace levin
