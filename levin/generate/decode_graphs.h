#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "levin/devices/graphs.h"
#include "levin/models/decoder.h"

namespace levin::detail {

/// The rows of a graph that serves this many.
int64_t graph_rows(int64_t rows);

/// Decode steps of a model on CUDA, each captured once for a number of rows and a number of slots, and replayed: the
/// host has one launch a token instead of hundreds.
class DecodeGraphs {
 public:
  DecodeGraphs(models::Decoder model, models::DecoderCache& cache);

  /// The next token of rows 0 to tokens.size() - 1, whose positions are `lengths`; `seen` is more than any of them.
  /// float32 logits [rows, V], which last until the next call.
  Tensor decode(std::span<const int64_t> tokens, std::span<const int64_t> lengths, int64_t seen);

 private:
  struct Step {
    std::shared_ptr<DeviceGraph> graph;
    Tensor logits;
  };
  Tensor run(int64_t rows, int64_t seen);

  models::Decoder model_;
  models::DecoderCache& cache_;
  std::shared_ptr<GraphDevice> device_;
  /// int64 [2, rows]: tokens and positions of a step.
  Tensor inputs_;
  std::vector<int64_t> host_;
  std::map<std::pair<int64_t, int64_t>, Step> steps_;
  bool refused_ = false;
};

}  // namespace levin::detail
