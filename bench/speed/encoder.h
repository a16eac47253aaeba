#pragma once

// The work of a training step of encoders that classify texts.

#include "bench/speed/work.h"
#include "levin/models/block_attention.h"
#include "levin/models/text_encoder_options.h"

namespace levin::bench {

/// A classifier by the first token, which the last block computes alone. Longer texts than BigBird's blocks need attend
/// by blocks.
inline Work text_encoder_work(const models::TextEncoderOptions& o, int64_t sequences, int64_t length, StepBytes bytes,
                              Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(sequences), tokens = static_cast<double>(length),
             dim = static_cast<double>(o.body.hidden_dim), mlp = static_cast<double>(o.body.mlp_width()),
             rows = batch * tokens, size = static_cast<double>(o.block_size),
             seen = size * static_cast<double>(5 + o.random_blocks);
  const bool by_blocks =
      models::BlockAttention({.block_size = o.block_size, .random_blocks = o.random_blocks}).applies(length);
  const auto dropout = [&](double n) { work.add(KernelClass::kElementwise, 0, 4 * n * bytes.activation + 2 * n); };
  const auto attention = [&] {
    if (!by_blocks) return work.attention(batch, tokens, tokens, dim);
    work.attention(batch, tokens - 2 * size, seen, dim);
    work.attention(batch, 2 * size, tokens, dim);
  };
  const auto norms = [&](double n) {
    for (int i = 0; i < 2; ++i) work.add_norm(n, dim);
  };
  work.add_norm(rows, dim);
  if (o.body.dropout > 0) dropout(rows * dim);
  for (int64_t i = 0; i < o.body.num_layers; ++i) {
    const double computed = i + 1 < o.body.num_layers ? rows : batch;
    work.linear(rows, dim, 3 * dim);
    if (computed == rows || by_blocks)
      attention();
    else
      work.attention(batch, 1, tokens, dim);
    work.linear(computed, dim, dim);
    work.linear(computed, dim, mlp);
    work.activation(computed * mlp);
    work.linear(computed, mlp, dim);
    norms(computed);
  }
  work.linear(batch, dim, dim);
  work.linear(batch, dim, static_cast<double>(o.num_labels));
  work.cross_entropy(batch, static_cast<double>(o.num_labels));
  return work;
}

}  // namespace levin::bench
