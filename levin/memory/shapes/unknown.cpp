#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {

std::span<const UnknownShape> unknown_shapes() {
  static const std::vector<UnknownShape> all{
      {"nonzero",
       "the number of results depends on values (a boolean mask as an index is one, too); multiply by the mask, or use "
       "torch::where with three arguments"},
      {"masked_select", "the number of results depends on values; multiply by the mask, or use torch::where"},
      {"_local_scalar_dense",
       "it reads a value (item()); compute with the tensor, or leave it out of the estimated step"},
      {"is_nonzero", "it reads a value (a tensor as a condition); use torch::where"},
      {"_unique", "the number of results depends on values; count with torch::zeros(n).index_add"},
      {"_unique2", "the number of results depends on values; count with torch::zeros(n).index_add"},
      {"unique_dim", "the number of results depends on values; leave it out of the estimated step"},
      {"unique_consecutive", "the number of results depends on values; leave it out of the estimated step"},
      {"unique_dim_consecutive", "the number of results depends on values; leave it out of the estimated step"},
      {"bincount", "the number of results depends on values; use torch::zeros(n).index_add"},
      {"_ctc_loss.Tensor", "it reads lengths from tensors; call torch::ctc_loss with lengths as std::vector<int64_t>"},
      {"_use_cudnn_ctc_loss.Tensor",
       "it reads lengths from tensors; call torch::ctc_loss with lengths as std::vector<int64_t>"},
      {"ctc_loss.Tensor", "it reads lengths from tensors; call torch::ctc_loss with lengths as std::vector<int64_t>"},
  };
  return all;
}

}  // namespace levin::detail
