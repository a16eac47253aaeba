#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/models/decoder.h"
#include "levin/models/language/weight_plan.h"

/// Quantized weights of model folders. 8-bit and NF4 weights are those of bitsandbytes, with its names; int4 and fp8
/// have a layout of Levin.
namespace levin::models::detail {

/// What the `quantization_config` of a config.json means; none without one. What is not known is an Error.
std::optional<kernels::QuantizeOptions> quantization_in(const ModelConfig& config);
/// Such a `quantization_config`. `kept`: names of linear layers that are not quantized.
std::string quantization_config(const kernels::QuantizeOptions& options, const std::vector<std::string>& kept);

/// Whether a tensor of a quantized file belongs to another one: scales, code books.
bool belongs_to_packed(const std::string& name);

/// Linear layers by the names of their weights.
std::vector<std::pair<std::string, DecoderLinearImpl*>> linear_layers(const torch::nn::Module& module);
/// How a layer is quantized where the blocks of a model are quantized so; none: not at all. With int4 the head has 8
/// bits, unless it is the embedding, too.
std::optional<kernels::QuantizeOptions> quantization_of_layer(const std::string& name, const DecoderOptions& body,
                                                              const kernels::QuantizeOptions& blocks);

/// Reads a packed weight [rows, columns] to the device.
kernels::QuantizedWeight read_quantized(const WeightFile& file, const PlannedWeight& weight,
                                        const kernels::QuantizeOptions& options, int64_t heads, c10::Device device);

/// What a file has of a weight: for each of their_weight().names, tensors by what stands behind that name ("",
/// ".absmax"). `dtype` is that of the model.
using PackedParts = std::vector<std::vector<std::pair<std::string, Tensor>>>;
PackedParts quantized_for_file(const kernels::QuantizedWeight& weight, const TheirWeight& theirs, const QkvRows& rows,
                               int64_t heads, c10::ScalarType dtype);

}  // namespace levin::models::detail
