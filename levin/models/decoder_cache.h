#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "levin/models/decoder_options.h"
#include "levin/models/decoder_positions.h"

namespace levin::models {

/// What keys and values are kept in.
enum class CacheDtype {
  /// The dtype of the model.
  kAuto,
  /// A byte each and a float32 scale for each token and head.
  kInt8,
  kFp8,
};
/// Of "auto", "int8" and "fp8".
CacheDtype cache_dtype_of(const std::string& name);

struct DecoderCacheOptions {
  CacheDtype dtype = CacheDtype::kAuto;
  /// The positions that there may be; 0: as many as a row has room for. Blocks of a row are together more than one.
  int64_t positions = 0;
};

/// Keys and values of the tokens that have gone through a decoder. The token at position p of a row lies in slot p, so
/// rows of unequal length need no padding: a query sees the slots up to its own position, and what lies behind is
/// written before it is seen.
///
///     DecoderCache cache(model->options, rows, capacity, model->tokens->weight.options());
///     auto x = model->hidden_states(prompt, cache, {.positions = zero_to_length});               // [B, T]
///     x = model->hidden_states(next, cache, {.positions = next_position, .seen = length + 1});  // [B, 1]
///
/// Paged: its rows are blocks of `capacity` tokens, and CachePass::blocks says which of them a row of tokens has. The
/// token at position p lies in slot p % capacity of block p / capacity.
struct DecoderCache {
  /// Room for `capacity` tokens of each of `rows` rows.
  DecoderCache(const DecoderOptions& options, int64_t rows, int64_t capacity, const c10::TensorOptions& kind,
               const DecoderCacheOptions& more = {});

  int64_t rows() const { return keys.front().size(0); }
  int64_t capacity() const { return keys.front().size(2); }
  /// Of keys, values and scales.
  int64_t nbytes() const;
  bool quantized() const { return dtype != CacheDtype::kAuto; }
  /// Bytes of one token in a cache of that kind.
  static int64_t token_bytes(const DecoderOptions& options, CacheDtype dtype, at::ScalarType of_model);
  /// The first `length` slots of a row in place of those of another.
  void copy_row(int64_t from, int64_t to, int64_t length);
  /// Row i becomes what row index[i] was, in the first `length` slots.
  void select_rows(const Tensor& index, int64_t length);

  CacheDtype dtype = CacheDtype::kAuto;
  at::ScalarType of_model;
  /// Of each layer [rows, Hkv, capacity, D]; the bytes of fp8 as uint8.
  std::vector<Tensor> keys, values;
  /// Where keys and values are bytes: float32 [rows, Hkv, capacity] of each layer; else empty.
  std::vector<Tensor> key_scales, value_scales;
  /// Cosines and sines of each position, float32 [2, capacity, R / 2]; undefined without rotary positions. Under
  /// dynamic scaling a position has the frequencies of a sequence that ends with it.
  Tensor rotary;
  /// ALiBi: the slope of each head, float32 [H]; else undefined.
  Tensor slopes;
};

/// How tokens [B, T] go through a decoder with a cache.
struct CachePass {
  /// int64 [B, T], on the device.
  Tensor positions;
  /// Slots that the queries may see: more than any position. 0: the rows begin here, and see themselves only.
  int64_t seen = 0;
  /// The row of the cache that the first row of the tokens has; the others follow it.
  int64_t first_row = 0;
  /// Paged: int64 [B, N], the blocks of each row in the order of its positions. What lies behind the last position of a
  /// row may be any block. `first_row` is nothing then.
  Tensor blocks = {};
  /// Of a prompt: the length of each row, all of it. Dynamic scaling depends on it.
  std::vector<int64_t> lengths = {};
};

namespace detail {

/// A pass under way, for the attention of each layer.
struct CacheStep {
  const DecoderOptions* options;
  DecoderCache* cache;
  const CachePass* pass;
  /// One kernel turns, appends and attends (levin/kernels/decode/decode.h): there are neither angles nor masks.
  bool fused = false;
  /// int64 [B * T * Hkv]: where keys and values go in a cache of rows of D.
  Tensor slots;
  /// Paged: int64 [B * Hkv * seen], where those lie that are seen.
  Tensor seen_slots;

  /// A step that is fused: [B, 1, H, D] and [B, 1, Hkv, D] to [B, 1, H * D].
  Tensor decode(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, double scale, double softcap) const;
  /// [B, T, Hkv, D] each, which become what the cache keeps of them: a token sees the same numbers whether they come
  /// with it or lie in the cache.
  void write(int64_t layer, Tensor& k, Tensor& v) const;
  /// [B, Hkv, seen, D] in the dtype of the queries [B, T, H, D].
  Tensor keys(int64_t layer, const Tensor& q) const;
  Tensor values(int64_t layer, const Tensor& q) const;

 private:
  Tensor seen(const Tensor& kept, const std::vector<Tensor>& scales, int64_t layer, const Tensor& q) const;
};

/// Makes a step the current one of the thread for its life.
class EnterCacheStep {
 public:
  explicit EnterCacheStep(const CacheStep& step);
  ~EnterCacheStep();
  EnterCacheStep(const EnterCacheStep&) = delete;
  EnterCacheStep& operator=(const EnterCacheStep&) = delete;
};

/// Null where tokens go through the model without a cache.
const CacheStep* current_cache_step();
CacheStep cache_step(const DecoderOptions& options, DecoderCache& cache, const CachePass& pass);

/// Angles [2, B, T, R / 2] of a pass; undefined without rotary positions.
Tensor cached_angles(const DecoderOptions& options, const DecoderCache& cache, const CachePass& pass);
/// Masks [B, H or 1, T, seen] of a pass, or those of whole rows.
AttentionMasks cached_masks(const DecoderOptions& options, const CachePass& pass, const Tensor& like);

/// Queries [B, T, H, D] over keys and values [B, Hkv, S, D], which are not copied, to [B, T, H * D].
Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale,
                        double softcap);

}  // namespace detail
}  // namespace levin::models
