#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string_view>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/core/error.h"
#include "levin/kernels/decode/decode.h"
#include "levin/kernels/decode/decode_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/constant_weights.h"

namespace levin::kernels {
namespace {

/// Keys that a block has at least, parts of the keys at most, and keys of a head that one wide block takes.
constexpr int64_t kFewestKeys = 64, kMostParts = 64, kMostKeysOfWide = 512;

/// Rows of a launch.
constexpr int64_t kMostRows = 65535;

bool has_scales(const DecodeArguments& args) {
  for (const auto* each : {&args.key_scales, &args.value_scales})
    if (!each->defined() || each->scalar_type() != at::kFloat || !each->is_contiguous() ||
        each->sizes() != args.keys.sizes().slice(0, 3))
      return false;
  return true;
}

/// Rows of heads that lie side by side, at multiples of 16 bytes.
Tensor head_rows(const Tensor& x) {
  const bool has_rows = x.stride(3) == 1 && x.stride(2) == x.size(3) && x.stride(0) % detail::kDecodeDims == 0 &&
                        detail::is_pack_aligned(x.const_data_ptr());
  return has_rows ? x : x.clone(at::MemoryFormat::Contiguous);
}

const cudaDeviceProp& device_of(const DecodeArguments& args) {
  return *at::cuda::getDeviceProperties(args.q.device().index());
}

int64_t processors(const DecodeArguments& args) {
  return device_of(args).multiProcessorCount;
}

int64_t seen_keys(const DecodeArguments& args) {
  return args.window > 0 ? std::min(args.window, args.seen) : args.seen;
}

/// Whether a block of many threads takes all keys of a head: there are few of both.
bool is_wide(const DecodeArguments& args) {
  const auto kv_heads = args.k.size(2);
  return args.q.size(2) <= 4 * kv_heads && args.q.size(0) * kv_heads <= processors(args) &&
         seen_keys(args) <= kMostKeysOfWide;
}

/// Enough blocks for the device, none with too little to do.
int64_t parts_of_keys(const DecodeArguments& args) {
  const auto blocks = args.q.size(0) * args.k.size(2);
  const auto wanted = 2 * processors(args), seen = seen_keys(args);
  return std::clamp((wanted + blocks - 1) / blocks, int64_t{1}, std::clamp(seen / kFewestKeys, int64_t{1}, kMostParts));
}

}  // namespace

bool has_decode_kernel(c10::Device device, at::ScalarType type, int64_t rows, int64_t head_width,
                       int64_t block_tokens) {
  const auto* word = std::getenv("LEVIN_DECODE_KERNELS");
  return !(word && std::string_view(word) == "0") && device.is_cuda() && rows <= kMostRows &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && head_width % detail::kDecodeDims == 0 &&
         head_width <= detail::kWidestHead && (block_tokens & (block_tokens - 1)) == 0;
}

Tensor decode_attention(const DecodeArguments& args) {
  const auto q = head_rows(args.q), k = head_rows(args.k), v = head_rows(args.v);
  const auto rows = q.size(0), heads = q.size(2), width = q.size(3), capacity = args.keys.size(2);
  const auto type = q.scalar_type(), kept = args.keys.scalar_type();
  const bool is_paged = args.blocks.defined();
  LEVIN_CHECK(q.size(1) == 1 && (kept == type || ((kept == at::kChar || kept == at::kByte) && has_scales(args))) &&
                  args.values.scalar_type() == kept && k.scalar_type() == type && v.scalar_type() == type &&
                  args.keys.is_contiguous() && args.values.is_contiguous() && heads % k.size(2) == 0 &&
                  (is_paged || args.first_row + rows <= args.keys.size(0)) && args.positions.scalar_type() == at::kLong,
              "[decode_attention] needs one token a row and a cache of its dtype or of bytes, got ", q.sizes(), " ",
              type, " and a cache ", args.keys.sizes(), " ", kept);
  LEVIN_CHECK(!is_paged || (args.blocks.scalar_type() == at::kLong && args.blocks.is_contiguous() &&
                            args.blocks.size(0) == rows && std::has_single_bit(static_cast<uint64_t>(capacity))),
              "[decode_attention] blocks must be int64 [", rows, ", N] of a power of two of tokens");
  auto out = at::empty({rows, 1, heads * width}, q.options());
  if (rows == 0) return out;
  const auto turned = kept == type ? Tensor() : at::empty({rows, heads, width}, q.options());
  const auto positions = args.positions.contiguous();
  detail::DecodeLaunch launch;
  launch.type = detail::number_type("decode_attention", type);
  launch.rows = static_cast<int32_t>(rows), launch.heads = static_cast<int32_t>(heads);
  launch.kv_heads = static_cast<int32_t>(k.size(2)), launch.width = static_cast<int32_t>(width);
  launch.positions = positions.const_data_ptr<int64_t>();
  launch.q = q.const_data_ptr(), launch.k = k.const_data_ptr(), launch.v = v.const_data_ptr();
  launch.q_stride = q.stride(0), launch.k_stride = k.stride(0), launch.v_stride = v.stride(0);
  if (args.angles.defined()) {
    launch.angles = args.angles.const_data_ptr<float>();
    launch.angle_rows = args.angles.size(1), launch.half = static_cast<int32_t>(args.angles.size(2));
  }
  launch.capacity = capacity;
  const auto first = is_paged ? 0 : args.first_row;
  launch.keys = args.keys[first].mutable_data_ptr();
  launch.values = args.values[first].mutable_data_ptr();
  if (kept != type) {
    launch.kept = kept == at::kChar ? detail::KeptAs::kInt8 : detail::KeptAs::kFp8;
    launch.key_scales = args.key_scales[first].mutable_data_ptr<float>();
    launch.value_scales = args.value_scales[first].mutable_data_ptr<float>();
  }
  if (is_paged) {
    launch.blocks = args.blocks.const_data_ptr<int64_t>();
    launch.table_width = args.blocks.size(1);
    launch.block_shift = std::countr_zero(static_cast<uint64_t>(capacity));
  }
  if (turned.defined()) launch.turned = turned.mutable_data_ptr();
  launch.out = out.mutable_data_ptr();
  if (args.slopes.defined()) launch.slopes = args.slopes.const_data_ptr<float>();
  launch.scale = static_cast<float>(args.scale), launch.softcap = static_cast<float>(args.softcap);
  launch.window = args.window;
  launch.early_cache = ConstantWeights::here();
  launch.groups = detail::has_decode_groups(launch.type, launch.kept, heads / k.size(2), width);
  launch.wide = !launch.groups && is_wide(args);
  launch.cluster = launch.wide && detail::has_decode_cluster(device_of(args).major, launch.kept, heads / k.size(2));
  launch.splits = launch.wide ? 1 : static_cast<int32_t>(parts_of_keys(args));
  Tensor partial;
  if (launch.splits > 1) {
    partial = at::empty({rows, heads, launch.splits, width + 2}, q.options().dtype(at::kFloat));
    launch.partial = partial.mutable_data_ptr<float>();
  }
  const c10::cuda::CUDAGuard guard(q.device());
  auto* stream = c10::cuda::getCurrentCUDAStream(q.device().index()).stream();
  C10_CUDA_CHECK(static_cast<cudaError_t>(detail::launch_decode_attention(launch, stream)));
  return out;
}

}  // namespace levin::kernels
