#include "levin/planner/model_shape.h"

#include <algorithm>
#include <filesystem>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/language/architecture.h"
#include "levin/models/language/model_config.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/models/vit.h"

namespace levin::planner {
namespace {

namespace fs = std::filesystem;
using Kind = ModelShape::Kind;

/// Published sizes of models that nobody makes on one machine. All use biases, GELU and learned positions ("gpt") or
/// none of these ("llama").
struct Row {
  const char* name;
  bool llama;
  int64_t layers, width, heads, kv_heads, mlp, vocabulary, sequence;
  int64_t experts = 0, experts_per_token = 0;
  /// 0: width / heads.
  int64_t head_width = 0;
};
constexpr Row kRows[] = {
    // Brown et al. 2020, table 2.1; the vocabulary is padded as Megatron does it.
    {"gpt3-125m", false, 12, 768, 12, 12, 3072, 51200, 2048},
    {"gpt3-350m", false, 24, 1024, 16, 16, 4096, 51200, 2048},
    {"gpt3-760m", false, 24, 1536, 16, 16, 6144, 51200, 2048},
    {"gpt3-1.3b", false, 24, 2048, 16, 16, 8192, 51200, 2048},
    {"gpt3-2.7b", false, 32, 2560, 32, 32, 10240, 51200, 2048},
    {"gpt3-6.7b", false, 32, 4096, 32, 32, 16384, 51200, 2048},
    {"gpt3-13b", false, 40, 5120, 40, 40, 20480, 51200, 2048},
    {"gpt3-175b", false, 96, 12288, 96, 96, 49152, 51200, 2048},
    // Narayanan et al. 2021, table 1.
    {"megatron-1.7b", false, 24, 2304, 24, 24, 9216, 51200, 2048},
    {"megatron-3.6b", false, 30, 3072, 32, 32, 12288, 51200, 2048},
    {"megatron-7.5b", false, 36, 4096, 32, 32, 16384, 51200, 2048},
    {"megatron-18b", false, 40, 6144, 48, 48, 24576, 51200, 2048},
    {"megatron-39b", false, 48, 8192, 64, 64, 32768, 51200, 2048},
    {"megatron-76b", false, 60, 10240, 80, 80, 40960, 51200, 2048},
    {"megatron-145b", false, 80, 12288, 96, 96, 49152, 51200, 2048},
    {"megatron-310b", false, 96, 16384, 128, 128, 65536, 51200, 2048},
    {"megatron-530b", false, 105, 20480, 128, 128, 81920, 51200, 2048},
    {"megatron-1t", false, 128, 25600, 160, 160, 102400, 51200, 2048},
    // Korthikanti et al. 2022, table 3.
    {"megatron-22b", false, 48, 6144, 64, 64, 24576, 51200, 2048},
    {"llama-2-7b", true, 32, 4096, 32, 32, 11008, 32000, 4096},
    {"llama-2-13b", true, 40, 5120, 40, 40, 13824, 32000, 4096},
    {"llama-2-70b", true, 80, 8192, 64, 8, 28672, 32000, 4096},
    {"llama-3-8b", true, 32, 4096, 32, 8, 14336, 128256, 8192},
    {"llama-3-70b", true, 80, 8192, 64, 8, 28672, 128256, 8192},
    {"llama-3-405b", true, 126, 16384, 128, 8, 53248, 128256, 8192},
    {"mixtral-8x7b", true, 32, 4096, 32, 8, 14336, 32000, 4096, 8, 2},
    {"mixtral-8x22b", true, 56, 6144, 48, 8, 16384, 32768, 4096, 8, 2},
    {"qwen3-30b-a3b", true, 48, 2048, 32, 4, 768, 151936, 4096, 128, 8, 128},
    {"qwen3-235b-a22b", true, 94, 4096, 64, 4, 1536, 151936, 4096, 128, 8, 128},
};

ModelShape shape_of(const Row& row) {
  return {.name = row.name,
          .layers = row.layers,
          .width = row.width,
          .heads = row.heads,
          .kv_heads = row.kv_heads,
          .head_width = row.head_width > 0 ? row.head_width : row.width / row.heads,
          .mlp_width = row.mlp,
          .gated = row.llama,
          .bias = !row.llama,
          .rms_norm = row.llama,
          .vocabulary = row.vocabulary,
          .tied_head = !row.llama,
          .positions = row.llama ? 0 : row.sequence,
          .sequence = row.sequence,
          .experts = row.experts,
          .experts_per_token = row.experts_per_token};
}

ModelShape shape_of(const std::string& name, const models::DecoderOptions& options) {
  const bool has_experts = options.experts.count > 0;
  return {.name = name,
          .layers = options.num_layers,
          .width = options.hidden_dim,
          .heads = options.num_heads,
          .kv_heads = options.key_heads(),
          .head_width = options.head_width(),
          .mlp_width = has_experts && options.experts.width > 0 ? options.experts.width : options.mlp_width(),
          .gated = has_experts || options.gated(),
          .bias = options.bias,
          .rms_norm = options.norm == "rms",
          .vocabulary = options.vocab_size,
          .tied_head = options.tied_head,
          .positions = options.positions == "learned" ? options.max_positions : 0,
          .sequence = options.max_positions,
          .classes = options.num_labels,
          .experts = options.experts.count,
          .experts_per_token = has_experts ? options.experts.per_token : 0,
          .shared_expert_width = has_experts ? options.shared_expert_dim : 0};
}

ModelShape shape_of(const std::string& name, const models::TextEncoderOptions& options) {
  auto shape = shape_of(name, options.body);
  shape.kind = Kind::kEncoder;
  shape.classes = options.head == "masked_lm" ? 0 : options.num_labels;
  if (options.positions_from_ids) shape.sequence -= options.pad_token + 1;
  return shape;
}

struct VisionRow {
  const char* name;
  int64_t patch, layers, heads, width, mlp;
};
/// As levin/models/vit.cpp makes them.
constexpr VisionRow kVision[] = {{"vit_b_16", 16, 12, 12, 768, 3072},
                                 {"vit_b_32", 32, 12, 12, 768, 3072},
                                 {"vit_l_16", 16, 24, 16, 1024, 4096},
                                 {"vit_l_32", 32, 24, 16, 1024, 4096},
                                 {"vit_h_14", 14, 32, 16, 1280, 5120}};

ModelShape shape_of(const VisionRow& row) {
  const int64_t side = 224 / row.patch, tokens = side * side + 1;
  return {.name = row.name,
          .kind = Kind::kVision,
          .layers = row.layers,
          .width = row.width,
          .heads = row.heads,
          .kv_heads = row.heads,
          .head_width = row.width / row.heads,
          .mlp_width = row.mlp,
          .vocabulary = 0,
          .tied_head = false,
          .positions = tokens,
          .sequence = tokens,
          .patch = 3 * row.patch * row.patch,
          .classes = 1000};
}

ModelShape shape_of_folder(const fs::path& folder) {
  const auto config = models::ModelConfig::read(folder / "config.json");
  const auto& architecture = models::architecture_of(config);
  const auto name = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  auto shape = architecture.decoder ? shape_of(name.string(), architecture.decoder(config))
                                    : shape_of(name.string(), architecture.encoder(config));
  shape.tied_head = config.flag("tie_word_embeddings", architecture.tied);
  return shape;
}

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

ModelShape shape_by_name(const std::string& name) {
  for (const auto& row : kRows) {
    if (name == row.name) return shape_of(row);
  }
  for (const auto& row : kVision) {
    if (name == row.name) return shape_of(row);
  }
  if (is_in(models::decoder_names(), name)) return shape_of(name, models::decoder_options(name));
  if (is_in(models::text_encoder_names(), name)) return shape_of(name, models::text_encoder_options(name));
  if (fs::exists(fs::path(name) / "config.json")) return shape_of_folder(name);
  LEVIN_CHECK(!fs::is_directory(name), "[levin plan] ", name, " has no config.json");
  LEVIN_CHECK(name.find('/') == name.npos, "[levin plan] --model \"", shown(name), "\": there is no such folder");
  fail_unknown("levin plan", "--model", name, planned_models());
}

}  // namespace

double ModelShape::attention_parameters() const {
  const double out = static_cast<double>(query_width()), in = out + 2.0 * static_cast<double>(key_width());
  const double w = static_cast<double>(width);
  const double norms = (rms_norm ? 2 : 4) * w;
  return w * in + out * w + (bias ? in + w : 0) + norms;
}

namespace {

double one_mlp(const ModelShape& model) {
  const double w = static_cast<double>(model.width), f = static_cast<double>(model.mlp_width);
  return (model.gated ? 3 : 2) * w * f + (model.bias ? (model.gated ? 2 : 1) * f + w : 0);
}

}  // namespace

double ModelShape::expert_parameters() const {
  return static_cast<double>(experts) * one_mlp(*this);
}

double ModelShape::mlp_parameters() const {
  if (experts == 0) return one_mlp(*this);
  // Each expert has a row of the router; the shared one has a gate.
  const double w = static_cast<double>(width);
  const double shared = shared_expert_width > 0 ? 3 * w * static_cast<double>(shared_expert_width) + w : 0;
  return expert_parameters() + static_cast<double>(experts) * w + shared;
}

double ModelShape::embedding_parameters() const {
  const double w = static_cast<double>(width);
  const double patches = patch > 0 ? (static_cast<double>(patch) + 2) * w : 0;  // with bias and class token
  return static_cast<double>(vocabulary + positions) * w + patches;
}

double ModelShape::head_parameters() const {
  const double w = static_cast<double>(width), norm = (rms_norm ? 1 : 2) * w;
  if (classes > 0) return norm + static_cast<double>(classes) * (w + 1);
  return norm + (tied_head ? 0 : static_cast<double>(vocabulary) * w);
}

double ModelShape::parameters() const {
  return static_cast<double>(layers) * layer_parameters() + embedding_parameters() + head_parameters();
}

double ModelShape::model_flops(bool all_pairs) const {
  const double w = static_cast<double>(width), q = static_cast<double>(query_width());
  const double kv = static_cast<double>(key_width()), s = static_cast<double>(sequence);
  const double used = experts > 0 ? static_cast<double>(experts_per_token) : 1;
  const double mlp =
      (gated ? 3 : 2) * w * (static_cast<double>(mlp_width) * used + static_cast<double>(shared_expert_width));
  const double layer = 2 * (w * (q + 2 * kv) + q * w + mlp) + (all_pairs || kind != Kind::kDecoder ? 4 : 2) * s * q;
  const double head = classes > 0 ? 0 : 2 * w * static_cast<double>(vocabulary);
  const double stem = 2 * w * static_cast<double>(patch);
  return 3 * s * (static_cast<double>(layers) * layer + head + stem);
}

ModelShape model_shape(const std::string& name_or_folder, int64_t sequence) {
  LEVIN_CHECK(!name_or_folder.empty(),
              "[levin plan] name a model: levin plan --model gpt3-175b (known: ", join(planned_models()), ")");
  auto shape = shape_by_name(name_or_folder);
  if (sequence == 0) return shape;
  LEVIN_CHECK(shape.kind != Kind::kVision, "[levin plan] --sequence is not for ", shape.name, ", a model of images");
  LEVIN_CHECK(sequence >= 1 && sequence <= 1 << 24, "[levin plan] --sequence ", sequence, " is not allowed (1 to ",
              1 << 24, ")");
  // Learned positions grow with the sequence; a run of its own would make them so.
  if (shape.positions > 0) shape.positions = std::max(shape.positions, sequence);
  shape.sequence = sequence;
  return shape;
}

std::vector<std::string> planned_models() {
  std::vector<std::string> all;
  for (const auto& row : kRows) all.emplace_back(row.name);
  for (const auto& name : models::decoder_names()) all.push_back(name);
  for (const auto& name : models::text_encoder_names()) all.push_back(name);
  for (const auto& row : kVision) all.emplace_back(row.name);
  return all;
}

}  // namespace levin::planner
