#pragma once

#include <cstddef>
#include <cstdint>

/// Lists of tensors that one kernel works on. Their pointers are arguments of the launch: nothing is uploaded, and
/// nobody waits. Without a header of torch.
namespace levin::kernels::detail {

/// What one launch takes as its arguments, of which there is room for 4 KB.
template <class Entry, int N>
struct TensorTable {
  static constexpr int kEntries = N;
  Entry entries[N];
  /// The first thread block of each entry, and the number of all.
  int32_t first_block[N + 1] = {};
  int32_t count = 0;
};

/// Calls launch(table) for as many entries as one table takes, and again. A thread block has `block_elements` of the
/// `numel` elements of its entry. The launch copies its arguments, so nothing of the host is held.
template <class Table, class Entries, class Launch>
void each_table(const Entries& entries, int64_t block_elements, Launch&& launch) {
  for (size_t next = 0; next < entries.size();) {
    Table table;
    int64_t blocks = 0;
    for (; next < entries.size() && table.count < Table::kEntries; ++next) {
      table.entries[table.count] = entries[next];
      table.first_block[table.count++] = static_cast<int32_t>(blocks);
      blocks += (entries[next].numel + block_elements - 1) / block_elements;
    }
    table.first_block[table.count] = static_cast<int32_t>(blocks);
    launch(table);
  }
}

}  // namespace levin::kernels::detail
