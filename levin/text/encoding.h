#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "levin/text/aligned.h"

namespace levin::text {

/// A text as tokens. All lists have one entry per token, except those that EncodeOptions leaves empty.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<std::string> tokens;
  /// Characters (code points) of the text that a token stands for, from `begin` to before `end`; {0, 0} for tokens that
  /// the post-processor added.
  std::vector<Span> offsets;
  /// 1 where the post-processor added the token.
  std::vector<uint8_t> special_mask;
  /// Which text of a pair, as the post-processor numbers them.
  std::vector<int64_t> type_ids;

  size_t size() const { return ids.size(); }
  void append(const Encoding& other);
};

}  // namespace levin::text
