#include "levin/kernels/linear/known_sums.h"

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

struct KnownSums {
  /// Weak: the gradient itself goes when autograd is done with it. It may come as a view of other sizes.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t offset = 0, numel = 0, version = 0;
  at::Tensor sums;
};

thread_local std::optional<KnownSums> known_sums;

}  // namespace

bool adds_columns_up(const at::Tensor& grad) {
  const char* word = std::getenv("LEVIN_BIAS_SUMS");
  return word ? std::string_view(word) != "0" : runs_fused(grad);
}

void remember_column_sums(const at::Tensor& grad, const at::Tensor& sums) {
  known_sums.reset();
  if (!sums.defined() || !grad.is_contiguous() || grad.is_inference()) return;
  known_sums = KnownSums{grad.storage().getWeakStorageImpl(), grad.storage_offset(), grad.numel(),
                         static_cast<int64_t>(grad._version()), sums};
}

at::Tensor take_column_sums(const at::Tensor& grad, at::ScalarType dtype) {
  if (!known_sums) return {};
  const auto known = *std::exchange(known_sums, std::nullopt);
  const bool same = grad.has_storage() && !grad.is_inference() && grad.is_contiguous() && grad.dim() > 0 &&
                    known.storage.lock().get() == grad.storage().unsafeGetStorageImpl() &&
                    known.offset == grad.storage_offset() && known.numel == grad.numel() &&
                    known.sums.numel() == grad.size(-1) && known.version == static_cast<int64_t>(grad._version());
  return same ? known.sums.to(dtype) : at::Tensor();
}

}  // namespace levin::kernels::detail
