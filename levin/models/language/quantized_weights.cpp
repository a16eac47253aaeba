#include "levin/models/language/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/kernels/quantized/quantized_detail.h"

namespace levin::models::detail {
namespace {

using kernels::Quantization;
using kernels::QuantizedWeight;
using kernels::QuantizeOptions;
using QuantJson = nlohmann::ordered_json;

constexpr const char* kQuantState = ".quant_state.bitsandbytes__nf4";
constexpr int64_t kNestedGroups = kernels::detail::kGroupsOfNested;

bool is_int8(const QuantizeOptions& options) {
  return options.kind == Quantization::kInt8 || options.kind == Quantization::kInt8Weights;
}

Tensor floats_of(const float* values, int64_t count) {
  return at::from_blob(const_cast<float*>(values), {count}, at::kFloat).clone();
}
Tensor nf4_table() {
  return floats_of(kernels::detail::kNf4Codes, 16);
}
Tensor nested_table() {
  return floats_of(kernels::dynamic_codes(true).data(), 256);
}

/// "q_proj.weight" has its 8-bit scales as "q_proj.SCB".
std::string int8_scales_name(const std::string& name) {
  return name.substr(0, name.rfind("weight")) + "SCB";
}

[[noreturn]] void fail_packed(const std::string& name, const std::string& why) {
  throw Error(fmt::format("[open_model] the quantized weight \"{}\" {}", shown(name), why));
}

Tensor read_sized(const WeightFile& file, const std::string& name, int64_t numel, c10::ScalarType type) {
  const auto* entry = file.find(name);
  if (!entry) fail_packed(name, "is missing");
  if (entry->type != type || entry->numel() != numel)
    fail_packed(name, fmt::format("must have {} numbers of {}, not {} of {}", numel, dtype_name(type), entry->numel(),
                                  entry->dtype));
  return file.read(name);
}

void check_table(const WeightFile& file, const std::string& name, const Tensor& expected) {
  if (!at::equal(read_sized(file, name, expected.numel(), at::kFloat).view({-1}), expected))
    fail_packed(name, "is another code book than that of bitsandbytes");
}

/// The scales of a part in float where they are nested.
void expand_scales(QuantizedWeight& part) {
  if (!part.nested.defined()) return;
  const auto outer = part.nested.view(at::kFloat);
  const auto indices = part.scales.reshape({-1}).to(at::kLong);
  const auto count = indices.numel(), blocks = outer.size(0);
  auto values = at::constant_pad_nd(nested_table().index_select(0, indices), {0, blocks * kNestedGroups - count});
  values = values.view({blocks, kNestedGroups}) * outer.narrow(1, 0, 1) + outer.narrow(1, 1, 1);
  part.scales = values.reshape({-1}).narrow(0, 0, count).reshape({part.rows(), -1}).contiguous().view(at::kByte);
  part.nested.reset();
}

QuantJson quant_state_of(const WeightFile& file, const std::string& name, int64_t rows, int64_t columns) {
  const auto* entry = file.find(name);
  if (!entry) fail_packed(name, "is missing");
  if (entry->type != at::kByte || entry->numel() > 1 << 16) fail_packed(name, "is not a text");
  const auto bytes = file.read(name).contiguous();
  const auto* begin = static_cast<const char*>(bytes.const_data_ptr());
  const auto json = QuantJson::parse(begin, begin + bytes.numel(), nullptr, false);
  const auto is = [&](const char* key, const QuantJson& value) { return json.contains(key) && json[key] == value; };
  if (!json.is_object() || !is("quant_type", "nf4") || !is("shape", QuantJson{rows, columns}) ||
      !json.contains("blocksize") || !json["blocksize"].is_number_integer())
    fail_packed(name, fmt::format("must say quant_type \"nf4\", blocksize and shape [{}, {}]", rows, columns));
  return json;
}

QuantizedWeight read_nf4(const WeightFile& file, const std::string& name, int64_t rows, int64_t columns) {
  const auto state_name = name + kQuantState;
  const auto json = quant_state_of(file, state_name, rows, columns);
  QuantizedWeight part{{.kind = Quantization::kNf4, .group = json["blocksize"].get<int64_t>()}, columns, {}, {}, {}};
  const auto group = part.options.group;
  if (group <= 0 || group % kernels::detail::kPackedGroup != 0 || columns % group != 0)
    fail_packed(state_name,
                fmt::format("has blocks of {}, and {} columns: blocks must be multiples of {} that end with "
                            "a row",
                            group, columns, kernels::detail::kPackedGroup));
  if (file.at(name).bytes != static_cast<uint64_t>(rows * columns / 2))
    fail_packed(name, fmt::format("must have {} bytes", rows * columns / 2));
  part.codes = file.read(name).contiguous().view({-1}).view(at::kByte).view({rows, columns / 2});
  check_table(file, name + ".quant_map", nf4_table());
  const auto groups = rows * columns / group;
  if (!file.find(name + ".nested_absmax")) {
    part.scales = read_sized(file, name + ".absmax", groups, at::kFloat).view({rows, -1}).view(at::kByte);
    return part;
  }
  part.options.nested = true;
  const auto blocks = (groups + kNestedGroups - 1) / kNestedGroups;
  if (!json.contains("nested_offset") || !json["nested_offset"].is_number() || json.value("nested_blocksize", 0) != 256)
    fail_packed(state_name, "must say nested_offset and nested_blocksize 256");
  check_table(file, name + ".nested_quant_map", nested_table());
  part.scales = read_sized(file, name + ".absmax", groups, at::kByte).view({rows, -1});
  const auto largest = read_sized(file, name + ".nested_absmax", blocks, at::kFloat).view({-1});
  const auto offset = at::full_like(largest, json["nested_offset"].get<double>());
  part.nested = at::stack({largest, offset}, 1).view(at::kByte);
  return part;
}

QuantizedWeight read_int8(const WeightFile& file, const std::string& name, const QuantizeOptions& options, int64_t rows,
                          int64_t columns) {
  QuantizedWeight part{options, columns, {}, {}, {}};
  part.codes = read_sized(file, name, rows * columns, at::kChar).view({rows, columns}).view(at::kByte);
  part.scales = read_sized(file, int8_scales_name(name), rows, at::kFloat).view({rows, 1}).view(at::kByte);
  if (const auto* format = file.find(name + "_format"); format && file.read(name + "_format").item<int64_t>() != 0)
    fail_packed(name, "is not stored row by row");
  return part;
}

QuantizedWeight read_own(const WeightFile& file, const std::string& name, const QuantizeOptions& options, int64_t rows,
                         int64_t columns) {
  QuantizedWeight part{options, columns, {}, {}, {}};
  if (options.kind == Quantization::kFp8) {
    part.codes = read_sized(file, name, rows * columns, at::kFloat8_e4m3fn).view({rows, columns}).view(at::kByte);
    part.scales = read_sized(file, name + ".scales", rows, at::kFloat).view({rows, 1}).view(at::kByte);
  } else {
    if (columns % options.group != 0) fail_packed(name, fmt::format("has no groups of {}", options.group));
    part.codes = read_sized(file, name, rows * columns / 2, at::kByte).view({rows, -1});
    part.scales = read_sized(file, name + ".scales", rows * columns / options.group * 2, at::kHalf)
                      .view({rows, -1})
                      .view(at::kByte);
  }
  return part;
}

QuantizedWeight read_part(const WeightFile& file, const std::string& name, const QuantizeOptions& options, int64_t rows,
                          int64_t columns) {
  if (options.kind == Quantization::kNf4) return read_nf4(file, name, rows, columns);
  return is_int8(options) ? read_int8(file, name, options, rows, columns)
                          : read_own(file, name, options, rows, columns);
}

/// The entry of nested scales: a part that ends within a block of them cannot be followed by another.
bool joins_nested(const std::vector<QuantizedWeight>& parts) {
  return parts.size() == 1 || std::all_of(parts.begin(), parts.end(), [](const auto& part) {
           return part.nested.defined() && part.scales.numel() % kNestedGroups == 0;
         });
}

QuantizedWeight joined(std::vector<QuantizedWeight> parts, const PlannedWeight& weight, int64_t heads) {
  const bool by_head = weight.layout == WeightLayout::kByHead;
  if (by_head || !joins_nested(parts) || (parts[0].nested.defined() && parts[0].scales.numel() % kNestedGroups != 0))
    for (auto& part : parts) expand_scales(part);
  auto whole = parts[0];
  if (parts.size() > 1) {
    std::vector<Tensor> codes, scales, nested;
    for (const auto& part : parts) {
      if (part.options.group != whole.options.group) fail_packed(weight.sources[0], "has parts with other blocks");
      codes.push_back(part.codes), scales.push_back(part.scales);
      if (part.nested.defined()) nested.push_back(part.nested);
    }
    whole.codes = at::cat(codes), whole.scales = at::cat(scales);
    if (!nested.empty()) whole.nested = at::cat(nested);
  }
  if (by_head) {
    whole.codes = heads_apart(whole.codes, heads, false);
    whole.scales = heads_apart(whole.scales, heads, false);
  }
  return whole;
}

Tensor text_tensor(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

void add_nf4(std::vector<std::pair<std::string, Tensor>>& to, const QuantizedWeight& part, c10::ScalarType dtype) {
  to.emplace_back("", part.codes.reshape({-1, 1}));
  QuantJson state{{"quant_type", "nf4"},
                  {"blocksize", part.options.group},
                  {"dtype", dtype_name(dtype)},
                  {"shape", {part.rows(), part.columns}}};
  if (part.nested.defined()) {
    const auto outer = part.nested.view(at::kFloat);
    to.emplace_back(".absmax", part.scales.reshape({-1}));
    to.emplace_back(".nested_absmax", outer.select(1, 0));
    to.emplace_back(".nested_quant_map", nested_table());
    // Texts of one length, so that the size is known before the numbers are.
    const auto offset = outer.is_meta() ? 0.0 : outer[0][1].item<double>();
    state["nested_blocksize"] = kNestedGroups;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = 0;
    auto text = state.dump();
    text.replace(text.rfind("0}"), 1, fmt::format("{:.16e}", offset));
    text.resize(256 + state.dump().size(), ' ');
    to.emplace_back(kQuantState, text_tensor(text));
  } else {
    to.emplace_back(".absmax", part.scales.view(at::kFloat).reshape({-1}));
    to.emplace_back(kQuantState, text_tensor(state.dump()));
  }
  to.emplace_back(".quant_map", nf4_table());
}

/// Rows of a weight; nested scales only where they end with a block.
QuantizedWeight rows_of(const QuantizedWeight& weight, int64_t first, int64_t rows) {
  auto part = weight;
  part.codes = weight.codes.narrow(0, first, rows);
  part.scales = weight.scales.narrow(0, first, rows);
  if (weight.nested.defined()) {
    const auto groups = weight.scales.size(1);
    part.nested = weight.nested.narrow(0, first * groups / kNestedGroups, rows * groups / kNestedGroups);
  }
  return part;
}

}  // namespace

std::optional<QuantizeOptions> quantization_in(const ModelConfig& config) {
  constexpr const char* kKey = "quantization_config";
  if (!config.has(kKey)) return {};
  if (!config.is_object(kKey)) config.fail(kKey, "is not an object");
  const auto found = config.object(kKey);
  const auto method = found.text("quant_method", "bitsandbytes");
  if (method == "levin") return kernels::quantization_of("open_model", found.text("format", ""));
  const bool four = found.flag("load_in_4bit", false), eight = found.flag("load_in_8bit", false);
  if (method != "bitsandbytes" || four == eight)
    config.fail(kKey,
                fmt::format("\"{}\" is not supported (8-bit and NF4 weights of bitsandbytes are, and Levin's own)",
                            shown(method)));
  if (eight) {
    auto options = kernels::quantization_of("open_model", found.text("levin_format", "int8"));
    if (!is_int8(options)) found.fail("levin_format", "must be \"int8\" or \"int8-weights\"");
    options.threshold = found.number({"llm_int8_threshold"}, 6, 0, 1e9);
    return options;
  }
  if (const auto type = found.text("bnb_4bit_quant_type", "fp4"); type != "nf4")
    found.fail("bnb_4bit_quant_type", fmt::format("\"{}\" is not supported: NF4 only", shown(type)));
  return QuantizeOptions{
      .kind = Quantization::kNf4, .group = 64, .nested = found.flag("bnb_4bit_use_double_quant", false)};
}

std::string quantization_config(const QuantizeOptions& options, const std::vector<std::string>& kept) {
  if (options.kind == Quantization::kInt4 || options.kind == Quantization::kFp8)
    return QuantJson{{"quant_method", "levin"}, {"format", kernels::quantization_name(options)}}.dump();
  const bool eight = is_int8(options);
  QuantJson json{{"quant_method", "bitsandbytes"}, {"load_in_4bit", !eight}, {"load_in_8bit", eight}};
  if (eight) {
    json["llm_int8_threshold"] = options.threshold;
    if (options.kind == Quantization::kInt8Weights) json["levin_format"] = "int8-weights";
  } else {
    json["bnb_4bit_quant_type"] = "nf4";
    json["bnb_4bit_use_double_quant"] = options.nested;
    json["bnb_4bit_quant_storage"] = "uint8";
  }
  json["llm_int8_skip_modules"] = kept;
  return json.dump();
}

bool belongs_to_packed(const std::string& name) {
  for (const std::string_view end : {".SCB", ".weight_format", ".weight.absmax", ".weight.quant_map",
                                     ".weight.nested_absmax", ".weight.nested_quant_map", ".weight.scales"})
    if (name.ends_with(end)) return true;
  return name.find(".weight.quant_state.") != std::string::npos;
}

std::vector<std::pair<std::string, DecoderLinearImpl*>> linear_layers(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, DecoderLinearImpl*>> layers;
  for (const auto& item : module.named_modules())
    if (auto* layer = dynamic_cast<DecoderLinearImpl*>(item.value().get()))
      layers.emplace_back(item.key() + ".weight", layer);
  return layers;
}

std::optional<QuantizeOptions> quantization_of_layer(const std::string& name, const DecoderOptions& body,
                                                     const QuantizeOptions& blocks) {
  if (name.starts_with("blocks.")) return blocks;
  if (name == "head.weight" && blocks.kind == Quantization::kInt4 && !body.tied_head)
    return QuantizeOptions{.kind = Quantization::kInt8Weights};
  return {};
}

QuantizedWeight read_quantized(const WeightFile& file, const PlannedWeight& weight, const QuantizeOptions& options,
                               int64_t heads, c10::Device device) {
  const auto columns = weight.target.size(1);
  std::vector<QuantizedWeight> parts;
  for (size_t i = 0; i < weight.sources.size(); ++i)
    parts.push_back(read_part(file, weight.sources[i], options,
                              weight.sources.size() > 1 ? weight.rows[i] : weight.target.size(0), columns));
  auto whole = joined(std::move(parts), weight, heads);
  whole.codes = whole.codes.to(device), whole.scales = whole.scales.to(device);
  if (whole.nested.defined()) whole.nested = whole.nested.to(device);
  return whole;
}

PackedParts quantized_for_file(const QuantizedWeight& weight, const TheirWeight& theirs, const QkvRows& rows,
                               int64_t heads, c10::ScalarType dtype) {
  auto ordered = weight;
  if (theirs.layout == WeightLayout::kByHead) {
    // Rows change their places, and with them the blocks of nested scales.
    if (ordered.nested.defined() && !ordered.codes.is_meta()) {
      ordered.codes = ordered.codes.cpu(), ordered.scales = ordered.scales.cpu(), ordered.nested = ordered.nested.cpu();
      expand_scales(ordered);
    } else if (ordered.nested.defined()) {
      ordered.scales = at::empty({ordered.rows(), ordered.scales.size(1) * 4}, ordered.scales.options());
      ordered.nested.reset();
    }
    ordered.codes = heads_apart(ordered.codes, heads, true);
    ordered.scales = heads_apart(ordered.scales, heads, true);
  }
  PackedParts parts;
  int64_t first = 0;
  for (size_t i = 0; i < theirs.names.size(); ++i) {
    const auto count = theirs.names.size() > 1 ? rows.at(i) : ordered.rows();
    const auto part = rows_of(ordered, first, count);
    first += count;
    auto& to = parts.emplace_back();
    if (weight.options.kind == Quantization::kNf4) {
      add_nf4(to, part, dtype);
    } else if (is_int8(weight.options)) {
      to.emplace_back("", part.codes.view(at::kChar));
      to.emplace_back("SCB", part.scales.view(at::kFloat).reshape({-1}));
      to.emplace_back("weight_format", at::zeros({}, at::kByte));
    } else {
      const bool fp8 = weight.options.kind == Quantization::kFp8;
      to.emplace_back("", fp8 ? part.codes.view(at::kFloat8_e4m3fn) : part.codes);
      const auto scales =
          fp8 ? part.scales.view(at::kFloat).reshape({-1}) : part.scales.view(at::kHalf).reshape({count, -1, 2});
      to.emplace_back(".scales", scales);
    }
  }
  return parts;
}

}  // namespace levin::models::detail
