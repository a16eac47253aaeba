#include <algorithm>
#include <vector>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/decode/decode.h"
#include "levin/kernels/decode/few_rows.h"

namespace levin::kernels {
namespace {

/// The first numbers of each head, in pairs of halves, turned by the angle of a position: x float [heads, width].
void turn(float* x, int64_t heads, int64_t width, const Tensor& angles, int64_t position) {
  const auto half = angles.size(2);
  const auto *cosines = angles.const_data_ptr<float>() + position * half, *sines = cosines + angles.size(1) * half;
  for (auto* head = x; head < x + heads * width; head += width)
    for (int64_t i = 0; i < half; ++i) {
      const auto a = head[i], b = head[i + half];
      head[i] = a * cosines[i] - b * sines[i];
      head[i + half] = b * cosines[i] + a * sines[i];
    }
}

}  // namespace

bool has_decode_kernel_cpu(const Tensor& hidden) {
  const auto type = hidden.scalar_type();
  return hidden.is_cpu() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

Tensor decode_attention_cpu(const DecodeArguments& args) {
  const auto rows = args.q.size(0), heads = args.q.size(2), width = args.q.size(3), shared = args.k.size(2);
  const auto type = args.keys.scalar_type();
  const auto capacity = args.keys.size(2), groups = heads / shared;
  LEVIN_CHECK(args.q.size(1) == 1 && args.values.scalar_type() == type && args.keys.is_contiguous() &&
                  args.values.is_contiguous() && args.first_row + rows <= args.keys.size(0) && heads % shared == 0,
              "[decode_attention] needs one token a row and a cache of rows that fit, got ", args.q.sizes(),
              " and a cache ", args.keys.sizes(), " ", type);
  const auto positions = args.positions.contiguous();
  const auto* at = positions.const_data_ptr<int64_t>();
  auto q = at::empty({rows, heads, width}, args.q.options().dtype(at::kFloat)),
       k = at::empty({rows, shared, width}, q.options());
  q.copy_(args.q.squeeze(1)), k.copy_(args.k.squeeze(1));
  if (args.angles.defined())
    for (int64_t r = 0; r < rows; ++r) {
      turn(q[r].mutable_data_ptr<float>(), heads, width, args.angles, at[r]);
      turn(k[r].mutable_data_ptr<float>(), shared, width, args.angles, at[r]);
    }
  for (int64_t r = 0; r < rows; ++r) {
    LEVIN_CHECK(at[r] >= 0 && at[r] < capacity, "[decode_attention] position ", at[r], " of a cache of ", capacity);
    args.keys[args.first_row + r].select(1, at[r]).copy_(k[r]);
    args.values[args.first_row + r].select(1, at[r]).copy_(args.v[r][0]);
  }
  // As the kernel of CUDA: a query has the dtype of the keys that it meets.
  if (type != at::kFloat) q = q.to(type).to(at::kFloat);
  auto out = at::empty({rows, 1, heads * width}, q.options());
  const auto* slopes = args.slopes.defined() ? args.slopes.const_data_ptr<float>() : nullptr;
  const auto size = static_cast<int64_t>(args.keys.element_size());
  const auto* keys = static_cast<const char*>(args.keys.const_data_ptr());
  const auto* values = static_cast<const char*>(args.values.const_data_ptr());
  const auto* from = q.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  parallel_for(0, rows * shared, std::max<int64_t>(1, 4096 / std::max<int64_t>(args.seen, 1)),
               [&](int64_t begin, int64_t end) {
                 std::vector<float> scores(static_cast<size_t>(groups * args.seen));
                 for (auto i = begin; i < end; ++i) {
                   const auto r = i / shared, head = i % shared;
                   const auto offset = ((args.first_row + r) * shared + head) * capacity * width * size;
                   const auto last = at[r] + 1;
                   detail::attend_head({.q = from + i * groups * width,
                                        .keys = keys + offset,
                                        .values = values + offset,
                                        .type = detail::loop_number(type),
                                        .heads = groups,
                                        .width = width,
                                        .first = args.window > 0 ? std::max<int64_t>(0, last - args.window) : 0,
                                        .end = last,
                                        .scale = static_cast<float>(args.scale),
                                        .softcap = static_cast<float>(args.softcap),
                                        .slopes = slopes ? slopes + head * groups : nullptr,
                                        .scores = scores.data(),
                                        .out = to + i * groups * width});
                 }
               });
  return out.to(args.q.scalar_type());
}

}  // namespace levin::kernels
