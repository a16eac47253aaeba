#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "levin/devices/graphs.h"
#include "levin/kernels/decode/greedy.h"
#include "levin/models/decoder.h"

namespace levin::detail {

/// A decode step, with the likeliest token of each row behind it.
struct GreedyStep {
  /// [rows, V].
  Tensor logits;
  kernels::GreedyTokens tokens;
};

/// The rows of a graph that serves this many.
int64_t graph_rows(int64_t rows);

/// Decode steps of a model, each captured once for a number of rows and a number of slots, and replayed: the host has
/// one launch a token instead of hundreds.
class DecodeGraphs {
 public:
  DecodeGraphs(models::Decoder model, models::DecoderCache& cache, std::shared_ptr<GraphDevice> device);

  /// The next token of rows 0 to tokens.size() - 1, whose positions are `lengths`; `seen` is more than any of them.
  /// `blocks` of each row where the cache is paged; block 0 is then nobody's. Logits [rows, V], which last
  /// until the next call.
  Tensor decode(std::span<const int64_t> tokens, std::span<const int64_t> lengths, int64_t seen,
                std::span<const std::vector<int64_t>* const> blocks = {});
  /// The same for tokens that the device has, int64 [rows]. The host does not wait for them.
  Tensor decode(const Tensor& ids, std::span<const int64_t> lengths, int64_t seen,
                std::span<const std::vector<int64_t>* const> blocks = {});
  /// The same, and the likeliest tokens, which the graph finds as well. `ids` of the result last until the next call,
  /// `found` until the next but one. Steps that begin with the ids of the last one are replays with nothing in between:
  /// a graph leaves tokens and positions where its next replay reads them.
  GreedyStep decode_greedy(const Tensor& ids, std::span<const int64_t> lengths, int64_t seen);

 private:
  /// A step of some rows that see some slots, each row with that many blocks (0: the cache is not paged).
  struct Size {
    int64_t rows, slots, blocks;
    bool greedy = false;
    auto operator<=>(const Size&) const = default;
  };
  struct Step {
    /// int64: tokens, positions and blocks of all rows, and the turn.
    Tensor inputs;
    std::shared_ptr<DeviceGraph> graph;
    Tensor logits;
    /// Of a greedy step: float64 [turns, rows, 3], the turn of the next replay, and the lengths behind the last one:
    /// the positions in `inputs`. No lengths: they are not known.
    Tensor found;
    int64_t turn = 0;
    std::vector<int64_t> next_lengths = {};
  };
  Size size_for(int64_t rows, int64_t seen, bool is_paged) const;
  Step& step_of(const Size& size);
  /// Tokens are in `tokens`, or in `ids` where those are defined.
  Tensor decode(const Size& size, std::span<const int64_t> tokens, const Tensor& ids, std::span<const int64_t> lengths,
                std::span<const std::vector<int64_t>* const> blocks);
  void upload(const Size& size, Step& step, std::span<const int64_t> tokens, const Tensor& ids,
              std::span<const int64_t> lengths, std::span<const std::vector<int64_t>* const> blocks);
  /// Captures the step, or says why it cannot be. The step itself has been done: its logits.
  Tensor capture(const Size& size, Step& step);
  Tensor run(const Size& size, const Tensor& inputs);
  /// And what follows in the graph of a greedy step, which changes `inputs`.
  Tensor run_whole(const Size& size, const Tensor& inputs, const Tensor& found);

  models::Decoder model_;
  models::DecoderCache& cache_;
  std::shared_ptr<GraphDevice> device_;
  std::vector<int64_t> host_;
  std::map<Size, Step> steps_;
  bool refused_ = false;
};

}  // namespace levin::detail
