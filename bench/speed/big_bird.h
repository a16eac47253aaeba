#pragma once

// The work of a training step of BigBird.

#include "bench/speed/work.h"
#include "levin/models/text_encoder_options.h"

namespace levin::bench {

inline Work big_bird_work(const models::TextEncoderOptions& o, int64_t sequences, int64_t length, StepBytes bytes,
                          Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(sequences), tokens = static_cast<double>(length),
             dim = static_cast<double>(o.body.hidden_dim), mlp = static_cast<double>(o.body.mlp_width()),
             rows = batch * tokens, size = static_cast<double>(o.block_size),
             seen = size * static_cast<double>(5 + o.random_blocks);
  work.add_norm(rows, dim);
  for (int64_t i = 0; i < o.body.num_layers; ++i) {
    work.linear(rows, dim, 3 * dim);
    work.attention(batch, tokens - 2 * size, seen, dim);
    work.attention(batch, 2 * size, tokens, dim);
    work.linear(rows, dim, dim);
    work.linear(rows, dim, mlp);
    work.activation(rows * mlp);
    work.linear(rows, mlp, dim);
    work.add_norm(rows, dim);
    work.add_norm(rows, dim);
  }
  work.linear(batch, dim, dim);
  work.linear(batch, dim, static_cast<double>(o.num_labels));
  work.cross_entropy(batch, static_cast<double>(o.num_labels));
  return work;
}

}  // namespace levin::bench
