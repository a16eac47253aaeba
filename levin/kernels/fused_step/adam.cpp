#include "levin/kernels/fused_step/adam.h"

#include <vector>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/fused_step/adam_loops.h"

namespace levin::kernels {
namespace {

void check_lengths(const char* operation, size_t count, std::initializer_list<std::pair<const char*, size_t>> lists) {
  for (const auto& [name, length] : lists)
    LEVIN_CHECK(length == count, "[", operation, "] there are ", count, " parameters and ", length, " ", name);
}

}  // namespace

void fused_adam(const AdamTensors& t, const AdamNumbers& n, const StepScale& scale,
                const StepReplay<AdamNumbers>& replay) {
  constexpr const char* kOperation = "fused_adam";
  const size_t count = t.params.size();
  check_lengths(kOperation, count,
                {{"gradients", t.grads.size()},
                 {"averages", t.averages.size()},
                 {"squares", t.squares.size()},
                 {"steps", t.steps.size()},
                 {"largest averages", n.amsgrad ? t.largest.size() : count},
                 {"copies", t.copies.empty() ? count : t.copies.size()}});
  const auto fill = [&](detail::StepEntry& entry, size_t i) {
    const Tensor& param = t.params[i];
    entry.first = detail::state_pointer(kOperation, entry, "the average", t.averages, i, param);
    entry.second = detail::state_pointer(kOperation, entry, "the square", t.squares, i, param);
    if (n.amsgrad) entry.third = detail::state_pointer(kOperation, entry, "the largest average", t.largest, i, param);
    entry.step = detail::step_pointer(kOperation, t.steps, i, param);
  };
  const auto [entries, device] = detail::step_entries(kOperation, t.params, t.grads, t.copies, fill);
  if (entries.empty()) return;
  if (device->is_cuda()) return detail::adam_cuda(entries, n, scale, *device, replay);
  LEVIN_CHECK(device->is_cpu(), "[fused_adam] the parameters are on ", *device, "; cpu and cuda are known");
  if (detail::host_skips(scale)) return;
  const double scaled = detail::host_scale(scale);
  detail::each_piece(entries, [&, &entries = entries](size_t e, int64_t begin, int64_t end) {
    detail::adam_loop(entries[e], n, scaled, begin, end);
  });
}

void fused_sgd(const SgdTensors& t, const SgdNumbers& n, const StepScale& scale, const StepReplay<SgdNumbers>& replay) {
  constexpr const char* kOperation = "fused_sgd";
  const size_t count = t.params.size();
  check_lengths(kOperation, count,
                {{"gradients", t.grads.size()},
                 {"momentum buffers", t.buffers.empty() ? count : t.buffers.size()},
                 {"copies", t.copies.empty() ? count : t.copies.size()}});
  const auto fill = [&](detail::StepEntry& entry, size_t i) {
    if (!t.buffers.empty())
      entry.first = detail::state_pointer(kOperation, entry, "the momentum buffer", t.buffers, i, t.params[i]);
  };
  const auto [entries, device] = detail::step_entries(kOperation, t.params, t.grads, t.copies, fill);
  if (entries.empty()) return;
  if (device->is_cuda()) return detail::sgd_cuda(entries, n, scale, *device, replay);
  LEVIN_CHECK(device->is_cpu(), "[fused_sgd] the parameters are on ", *device, "; cpu and cuda are known");
  if (detail::host_skips(scale)) return;
  const double scaled = detail::host_scale(scale);
  detail::each_piece(entries, [&, &entries = entries](size_t e, int64_t begin, int64_t end) {
    detail::sgd_loop(entries[e], n, scaled, begin, end);
  });
}

void load_step_kernels(c10::Device device) {
  if (device.is_cuda()) detail::load_step_kernels_cuda(device);
}

}  // namespace levin::kernels
