#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "levin/distributed/collective.h"

namespace levin::detail {

/// Tokens [begin, end) of a row that go through the model; those before lie in its blocks.
struct PagedRow {
  const std::vector<int64_t>* ids;
  int64_t begin, end;
  /// Room for `end` tokens.
  const std::vector<int64_t>* blocks;
  /// Tokens of its prompt, which dynamic rotary scaling depends on.
  int64_t prompt_length;
  /// Of a prefill: logits are for this many of its last tokens.
  int64_t kept = 1;
};

enum class PassKind : int64_t { kNone, kPrefill, kDecode, kDecodeSeveral, kEnd };

/// Rank 0 tells the ranks that have the model with it what it is about to run.
void tell_pass(Collective& ranks, PassKind kind, std::span<const PagedRow> rows);

/// A pass that rank 0 has told. Tokens before `begin` of a row are 0: nobody reads them.
struct ToldPass {
  PassKind kind = PassKind::kNone;
  std::vector<PagedRow> rows = {};
  /// What rows point to; a deque, whose elements stay where they are.
  std::deque<std::vector<int64_t>> lists = {};
};
/// Waits for rank 0.
ToldPass hear_pass(Collective& ranks);

}  // namespace levin::detail
