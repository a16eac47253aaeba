#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/batch.h"

namespace levin {

/// A text as tokens.
struct TokenRow {
  std::vector<int64_t> ids;
  /// What is to be predicted at each token, -100 where nothing is; empty: no targets.
  std::vector<int64_t> targets = {};
  /// The number of the text that each token belongs to, from 1 on, where a row holds several; empty: one.
  std::vector<int64_t> texts = {};
  /// The class; -1: none.
  int64_t label = -1;
};

/// The next token as the target of each, for the tokens that count: `learned` has a flag for every token, or none at
/// all (all count). The last one has no target.
std::vector<int64_t> next_token_targets(std::span<const int64_t> ids, std::span<const uint8_t> learned = {});

/// Texts to rows, on torch's threads: encode(i) for every i below `count`, which is called by several at once.
std::vector<TokenRow> encode_rows(int64_t count, const std::function<TokenRow(int64_t)>& encode);

/// Rows of `length` tokens out of all of `ids`, with targets; what is left at the end is dropped. Rows have one token
/// in common: the last target of one is the first token of the next.
std::vector<TokenRow> token_blocks(std::span<const int64_t> ids, int64_t length);

/// Rows put together to rows of up to `length` tokens, with `texts` numbered: the longest first, each to the fullest
/// row that has room. A text is never cut; one that is longer is an Error.
std::vector<TokenRow> packed_rows(std::vector<TokenRow> rows, int64_t length);

/// A dataset of rows of unequal lengths: "ids" int64 [T], "mask" int64 [T] (1, or the numbers of `texts`), "targets"
/// int64 [T] and "label" int64 [] where rows have them. A small handle: copies share.
///
///     levin::TokenRows rows(levin::encode_rows(n, [&](int64_t i) { return levin::TokenRow{.ids = encode(texts[i])};
///     })); auto loader = levin::make_loader(rows, {.batch_size = 16, .sampler =
///     levin::Sampler::by_length(rows.lengths(), 800)},
///                                      levin::PadRows{.pad_token = 0});
class TokenRows {
 public:
  TokenRows() : TokenRows(std::vector<TokenRow>{}) {}
  explicit TokenRows(std::vector<TokenRow> rows)
      : rows_(std::make_shared<const std::vector<TokenRow>>(std::move(rows))) {}

  int64_t size() const { return static_cast<int64_t>(rows_->size()); }
  Batch get(int64_t index) const;
  const TokenRow& row(int64_t index) const { return (*rows_)[static_cast<size_t>(index)]; }
  std::vector<int64_t> lengths() const;
  /// Tokens of all rows, and those that have a target.
  int64_t tokens() const;
  int64_t targets() const;

 private:
  std::shared_ptr<const std::vector<TokenRow>> rows_;
};

/// Makes a batch of samples of TokenRows: rows are filled up on the right to the length of the longest one, ids with
/// `pad_token`, "mask" with 0 and "targets" with -100.
struct PadRows {
  int64_t pad_token = 0;
  /// The length is rounded up to a multiple of it: fewer shapes, which compiled steps need.
  int64_t multiple_of = 1;
  /// Every batch has this length; 0: that of its longest row.
  int64_t length = 0;

  Batch operator()(const std::vector<Batch>& samples) const;
};

}  // namespace levin
