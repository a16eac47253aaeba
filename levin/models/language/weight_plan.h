#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>

#include "levin/io/weights/weights.h"
#include "levin/models/language/architecture.h"
#include "levin/nn/tensor/split.h"

namespace levin::models::detail {

/// A parameter of the module, and the tensors of a file that it is made of.
struct PlannedWeight {
  std::string name;
  Tensor target;
  WeightLayout layout = WeightLayout::kPlain;
  /// Names as the file has them, and the rows of each in the target.
  std::vector<std::string> sources;
  std::vector<int64_t> rows;
  /// The file has it quantized (quantized_weights.h).
  bool packed = false;
  /// What of it is here; without ranges all of it. `rows` are those of the whole.
  TensorSlice slice = {};
};

/// What a parameter of ours is called in files; null when the architecture does not have it.
struct TheirWeight {
  std::vector<std::string> names;
  WeightLayout layout = WeightLayout::kPlain;
  std::string also = {};
};
/// `sizes` are those of the full parameter: experts are as many names.
std::optional<TheirWeight> their_weight(const LanguageArchitecture& architecture, const std::string& ours,
                                        at::IntArrayRef sizes = {});

/// The tensors of a file by names without the prefix of the architecture, without what is no weight. Two tensors of one
/// name are an Error. `quantized`: weights may be packed; what belongs to a packed weight is not among the names.
class WeightNames {
 public:
  WeightNames(const WeightFile& file, const LanguageArchitecture& architecture, bool quantized = false);

  /// The entry of a name without prefix; null when there is none.
  const WeightEntry* find(const std::string& name) const;
  const WeightFile& file() const { return file_; }
  bool is_packed(const WeightEntry& entry) const;
  /// Names without prefix to names of the file.
  const std::unordered_map<std::string, const WeightEntry*>& all() const { return entries_; }

 private:
  const WeightFile& file_;
  bool quantized_;
  std::unordered_map<std::string, const WeightEntry*> entries_;
};

/// Where queries, keys and values of a layer are joined: their rows.
using QkvRows = std::array<int64_t, 3>;
QkvRows qkv_rows(const DecoderOptions& options);

/// Beginnings of names of parameters that are not read: of a new head.
struct NewWeights {
  std::vector<std::string> always = {};
  /// Only where the file lacks one.
  std::vector<std::string> if_missing = {};
};

/// Finds the tensors of all parameters; one Error lists what is missing, left over and of another shape or type.
/// `instead`: names of the module that are read from another one of it (an embedding from the head).
std::vector<PlannedWeight> plan_weights(const torch::nn::Module& module, const WeightNames& names,
                                        const LanguageArchitecture& architecture, const QkvRows& rows, int64_t heads,
                                        const std::unordered_map<std::string, std::string>& instead,
                                        const std::vector<std::string>& unused, c10::ScalarType dtype,
                                        const NewWeights& fresh = {});
/// Reads them in chunks of some megabytes, on torch's threads (weight_read.cpp). `on_read` is told the bytes of each
/// chunk, by one thread at a time.
void read_weights(const WeightFile& file, const std::vector<PlannedWeight>& plan, int64_t heads,
                  const std::function<void(int64_t)>& on_read = {});
/// Bytes that are read at once. Large enough for a link at its full speed, small enough that the buffers of all threads
/// are made in no time; tests make it smaller.
int64_t& chunk_of_read();

/// The tensors that a file has of a parameter, in the order of their_weight().names: views where that is possible.
std::vector<Tensor> weights_for_file(const Tensor& parameter, const TheirWeight& theirs, const QkvRows& rows,
                                     int64_t heads);

/// Rows of a tensor by head and part, [H, 3, D, ...], to [3, H, D, ...], and back.
Tensor heads_apart(const Tensor& x, int64_t heads, bool back);

/// Whether two tensors of a file have the same bytes.
bool equal_in_file(const WeightFile& file, const WeightEntry& a, const WeightEntry& b);

}  // namespace levin::models::detail
