#include "levin/generate/rank_passes.h"

#include <algorithm>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace levin::detail {

void tell_pass(Collective& ranks, PassKind kind, std::span<const PagedRow> rows) {
  std::vector<int64_t> flat;
  for (const auto& row : rows) {
    flat.insert(flat.end(),
                {row.begin, row.end, row.prompt_length, row.kept, static_cast<int64_t>(row.blocks->size())});
    flat.insert(flat.end(), row.ids->begin() + row.begin, row.ids->begin() + row.end);
    flat.insert(flat.end(), row.blocks->begin(), row.blocks->end());
  }
  auto header = at::tensor({static_cast<int64_t>(kind), static_cast<int64_t>(flat.size())}, at::kLong);
  ranks.broadcast(header);
  if (flat.empty()) return;
  auto body = at::tensor(flat, at::kLong);
  ranks.broadcast(body);
}

ToldPass hear_pass(Collective& ranks) {
  auto header = at::zeros({2}, at::kLong);
  ranks.broadcast(header);
  const auto* words = header.const_data_ptr<int64_t>();
  ToldPass pass{.kind = static_cast<PassKind>(words[0])};
  if (words[1] == 0) return pass;
  auto body = at::zeros({words[1]}, at::kLong);
  ranks.broadcast(body);
  const auto *at = body.const_data_ptr<int64_t>(), *last = at + words[1];
  while (at != last) {
    const auto begin = at[0], end = at[1], prompt_length = at[2], kept = at[3], blocks = at[4];
    auto& ids = pass.lists.emplace_back(static_cast<size_t>(end), 0);
    std::copy_n(at + 5, end - begin, ids.begin() + begin);
    at += 5 + end - begin;
    const auto& table = pass.lists.emplace_back(at, at + blocks);
    at += blocks;
    pass.rows.push_back(
        {.ids = &ids, .begin = begin, .end = end, .blocks = &table, .prompt_length = prompt_length, .kept = kept});
  }
  return pass;
}

}  // namespace levin::detail
