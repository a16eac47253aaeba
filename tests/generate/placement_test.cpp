// Where weights lie, and generation with weights that are streamed.
#include "levin/generate/placement.h"

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "levin/core/files.h"
#include "levin/devices/memory_counter.h"
#include "levin/generate/generate.h"
#include "levin/generate/placed_model.h"
#include "levin/generate/stream_cost.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/weight_stream.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"

namespace levin::generate_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;
using Places = std::vector<std::string>;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/generate/fixtures";
const fs::path kModels = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

std::vector<PlacementUnit> units_of(const std::vector<int64_t>& sizes) {
  std::vector<PlacementUnit> units;
  for (size_t i = 0; i < sizes.size(); ++i) units.push_back({.name = "u" + std::to_string(i), .bytes = sizes[i]});
  return units;
}

Places places_of(const std::vector<int64_t>& sizes, const PlacementOptions& options) {
  return place_units(units_of(sizes), options).places;
}

// ---- by size

TEST(Placement, IsThatOfAccelerate) {
  std::ifstream stream(kFixtures / "placement.json");
  const auto cases = nlohmann::json::parse(stream);
  ASSERT_GE(cases.size(), 60U);
  for (const auto& each : cases) {
    PlacementOptions options{.device_map = each["word"], .buffers = 1};
    if (each["budgets"].size() > 1) options.device = c10::Device("cuda:0");
    for (const auto& [place, bytes] : each["budgets"].items()) options.max_memory.push_back({place, bytes});
    Places expected;
    for (const std::string place : each["places"])
      expected.push_back(place == "cpu" || place == "disk" ? place : "cuda:" + place);
    EXPECT_EQ(places_of(each["sizes"], options), expected) << each;
  }
}

TEST(Placement, ReservesNothingWhereAllFits) {
  EXPECT_THAT(places_of({4, 4, 4}, {.max_memory = {{"cpu", 12}}}), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_THAT(places_of({2, 4, 4}, {.max_memory = {{"cpu", 10}}, .workspace = 0}), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_THAT(places_of({1, 4, 4, 4}, {.max_memory = {{"cpu", 12}}}), ElementsAre("cpu", "disk", "disk", "disk"));
}

TEST(Placement, SmallUnitsStayOnTheDevice) {
  PlacementOptions options{.device = c10::kCUDA, .max_memory = {{"cuda:0", 4000}}};
  EXPECT_THAT(places_of({900, 1000, 1000, 1000, 1000, 3, 500}, options),
              ElementsAre("cuda:0", "cuda:0", "cpu", "cpu", "cpu", "cuda:0", "cpu"));
}

TEST(Placement, UnitsInOneMemoryAreCountedOnce) {
  auto units = units_of({100, 100, 100, 100});
  for (auto& unit : units) unit.shared = 0;
  const auto placement = place_units(units, {.device = c10::kCUDA, .max_memory = {{"cuda:0", 200}, {"cpu", 300}}});
  EXPECT_THAT(placement.places, ElementsAre("cpu", "cpu", "cpu", "cpu"));
  EXPECT_EQ(placement.bytes_at("cpu"), 100);
  EXPECT_EQ(placement.streamed_bytes(), 400);
  EXPECT_EQ(placement.buffer_bytes(), 200);
}

TEST(Placement, SaysWhereEverythingGoes) {
  auto units = units_of({10, 10, 10, 10, 10});
  for (size_t i = 1; i < 4; ++i) units[i].name = "blocks." + std::to_string(i - 1);
  units[0].tied = {"head"};
  const auto placement = placement_from_map(
      units, {{"u0", "0"}, {"blocks", "cpu"}, {"blocks.2", "disk"}, {"u4", "disk"}}, {.device = c10::kCUDA});
  EXPECT_THAT(placement.describe(),
              AllOf(HasSubstr("cuda:0      10 B  u0, head\n"), HasSubstr("cpu         20 B  blocks.0-1 (streamed)"),
                    HasSubstr("disk        20 B  blocks.2, u4 (streamed)"), HasSubstr("cuda:0      20 B  buffers")));
}

TEST(Placement, RefusesWhatCannotBe) {
  const auto refused = [](const PlacementOptions& options) {
    return error_of([&] { place_units(units_of({100, 200, 100}), options); });
  };
  EXPECT_THAT(refused({.device_map = "autp"}), HasSubstr("did you mean \"auto\""));
  EXPECT_THAT(refused({.max_memory = {{"gpu0", 1}}}), HasSubstr("there is no device \"gpu0\""));
  EXPECT_THAT(refused({.max_memory = {{"cuda:0", 1}}}), HasSubstr("the model runs on the cpu"));
  EXPECT_THAT(refused({.max_memory = {{"cpu", 1}, {"cpu", 2}}}), HasSubstr("twice"));
  EXPECT_THAT(refused({.max_memory = {{"cpu", 350}}, .workspace = 7}),
              AllOf(HasSubstr("cpu needs 407 B"), HasSubstr("may have 350 B"), HasSubstr("\"u1\"")));
  EXPECT_THAT(refused({.device = c10::kCUDA, .max_memory = {{"cuda:0", 380}, {"cpu", 50}, {"disk", 50}}}),
              HasSubstr("do not fit in all of max_memory"));
  const auto mapped = [](const std::string& json) {
    return error_of([&] { placement_from_map(units_of({1, 2}), read_device_map(json, "[test] map"), {}); });
  };
  EXPECT_THAT(mapped("{\"u0\": \"cpu\"}"), HasSubstr("no place for \"u1\""));
  EXPECT_THAT(mapped("{\"\": \"cpu\", \"u7\": \"cpu\"}"), HasSubstr("\"u7\", which is no unit"));
  EXPECT_THAT(mapped("{\"\": \"tpu\"}"), HasSubstr("there is no device \"tpu\""));
  EXPECT_THAT(mapped("{\"\": 0}"), HasSubstr("the model runs on the cpu"));
  EXPECT_THAT(mapped("{\"\": -1}"), HasSubstr("must be a number or a name"));
  EXPECT_THAT(mapped("[1]"), HasSubstr("no JSON object"));
}

// ---- units of a model

constexpr const char* kConfig = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96,
  "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
  "tie_word_embeddings": true})";

models::LanguageModel new_llama() {
  torch::manual_seed(3);
  auto model = models::new_model(kConfig, {.dtype = at::kFloat});
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.decoder->parameters())
    if (parameter.dim() > 1) parameter.mul_(4);
  model.decoder->eval();
  return model;
}

Tensor logits_of(models::Decoder& model) {
  const at::NoGradGuard no_grad;
  return model(at::arange(40, at::kLong).view({2, 20}));
}

TEST(PlacementUnits, AreBlocksAndWhatStandsBesideThem) {
  auto options = new_llama().decoder->options;
  const auto model = init_module([&] { return models::decoder(options); }, {.deferred = true});
  const auto units = placement_units(*model);
  ASSERT_EQ(units.size(), 8U);
  EXPECT_EQ(units[0].name, "tokens");
  EXPECT_THAT(units[0].tied, ElementsAre("head"));
  EXPECT_EQ(units[0].bytes, 96 * 64 * 4);
  EXPECT_EQ(units[1].name, "blocks.0");
  EXPECT_TRUE(units[1].is_block);
  EXPECT_EQ(units[1].bytes, 4 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 256 + 2 * 64));
  EXPECT_EQ(units[1].shared, -1);
  EXPECT_EQ(units[7].name, "norm");
  EXPECT_TRUE(is_deferred(*model));
}

// ---- streamed

class PlacedModel : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    auto model = new_llama();
    expected_ = logits_of(model.decoder);
    models::save_model(model, folder_ / "model");
  }

  WeightPlacement place(int64_t cpu_bytes, const models::OpenModelOptions& options = {}) {
    const auto sizes = models::open_model_meta(folder_ / "model", options);
    return place_units(placement_units(sizes.module()), {.max_memory = {{"cpu", cpu_bytes}}});
  }

  Tensor expected_;
  const int64_t block_ = 246'272;
};

TEST_F(PlacedModel, ReadsFromFilesOfTheModelInBoundedMemory) {
  const int64_t budget = 3 * block_ + 100'000;
  const auto placement = place(budget);
  EXPECT_THAT(placement.places, ElementsAre("cpu", "cpu", "disk", "disk", "disk", "disk", "disk", "cpu"));
  const MemoryCounter counter;
  auto model = open_placed_model(folder_ / "model", {}, placement);
  EXPECT_LE(counter.peak(), budget);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(logits_of(model.decoder), expected_));
  // Weights and buffers, and what 40 tokens compute.
  EXPECT_LE(counter.peak(), budget + 40 * (8 * 64 + 4 * 256) * 4);
  EXPECT_GE(counter.peak(), placement.bytes_at("cpu") + 2 * block_);
}

TEST_F(PlacedModel, GeneratesTheSameTokens) {
  auto plain = models::open_model(folder_ / "model");
  auto placed = open_placed_model(folder_ / "model", {}, place(3 * block_ + 100'000));
  const std::vector<Ids> prompts{{7, 3, 11}, {9, 30, 2, 2, 17, 8, 1, 44}, {13}};
  for (const bool paged : {false, true}) {
    GenerateOptions options{.max_new_tokens = 16, .temperature = 0, .batch = 2, .prefill_chunk = 4};
    options.paged = paged;
    const auto expected = generate(plain.decoder, prompts, options);
    const auto found = generate(placed.decoder, prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(found[i].ids, expected[i].ids) << paged;
      EXPECT_EQ(found[i].logprobs, expected[i].logprobs) << paged;
    }
  }
}

TEST_F(PlacedModel, QuantizedUnitsGoToTheOffloadFolder) {
  for (const std::string word : {"int8-weights", "nf4"}) {
    const models::OpenModelOptions options{.quantize = word};
    auto plain = models::open_model(folder_ / "model", options);
    const auto sizes = models::open_model_meta(folder_ / "model", options);
    const auto placement = placement_from_map(placement_units(sizes.module()), {{"", "disk"}, {"norm", "cpu"}}, {});
    EXPECT_THAT(error_of([&] { open_placed_model(folder_ / "model", options, placement); }),
                HasSubstr("the disk needs an offload folder"));
    auto placed = open_placed_model(folder_ / "model", options, placement, {.offload_folder = folder_ / "offload"});
    EXPECT_TRUE(at::equal(logits_of(placed.decoder), logits_of(plain.decoder))) << word;
    EXPECT_TRUE(fs::is_empty(folder_ / "offload"));  // files without names
  }
}

TEST_F(PlacedModel, AllFormatsAndLayoutsOfFilesAreRead) {
  for (const std::string name : {"bloom", "gpt2_bin", "gpt_neox", "opt_post", "qwen3", "gemma2", "galactica"}) {
    auto plain = models::open_model(kModels / name);
    const auto placement = placement_from_map(placement_units(plain.module()), {{"", "disk"}}, {});
    auto placed = open_placed_model(kModels / name, {}, placement);
    const GenerateOptions options{.max_new_tokens = 6, .temperature = 0};
    const auto expected = generate(plain.decoder, {{7, 3, 11, 42, 5}, {13}}, options);
    const auto found = generate(placed.decoder, {{7, 3, 11, 42, 5}, {13}}, options);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(found[i].ids, expected[i].ids) << name;
      EXPECT_EQ(found[i].logprobs, expected[i].logprobs) << name;
    }
  }
}

TEST_F(PlacedModel, AMapMayHaveTheNamesOfTransformers) {
  const auto bloom = models::open_model_meta(kModels / "bloom");
  auto places = placement_from_map(placement_units(bloom),
                                   {{"transformer.word_embeddings", "cpu"},
                                    {"lm_head", "cpu"},
                                    {"transformer.word_embeddings_layernorm", "cpu"},
                                    {"transformer.h.0", "cpu"},
                                    {"transformer.h", "disk"},
                                    {"transformer.ln_f", "cpu"}},
                                   {})
                    .places;
  EXPECT_THAT(places, ElementsAre("cpu", "cpu", "cpu", "disk", "cpu"));
  // Part of a block is no unit.
  EXPECT_THAT(error_of([&] {
                placement_from_map(placement_units(bloom), {{"", "cpu"}, {"transformer.h.0.mlp", "disk"}}, {});
              }),
              HasSubstr("\"transformer.h.0.mlp\", which is no unit"));
  const auto llama = models::open_model_meta(folder_ / "model", {.quantize = "int8-weights"});
  places = placement_from_map(placement_units(llama), {{"model", "cpu"}, {"model.layers.5", "disk"}}, {}).places;
  EXPECT_THAT(places, ElementsAre("cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "disk", "cpu"));
}

TEST_F(PlacedModel, ADiskThatIsFullIsOneLine) {
  auto model = new_llama();
  const auto placement = placement_from_map(placement_units(model.module()), {{"", "disk"}}, {});
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1 << 12, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto line = error_of([&] { place_model(model.decoder, placement, {.offload_folder = folder_ / "offload"}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(line, HasSubstr("File too large"));
  EXPECT_TRUE(fs::is_empty(folder_ / "offload"));
  write_file(folder_ / "file", "x");
  EXPECT_THAT(error_of([&] { place_model(model.decoder, placement, {.offload_folder = folder_ / "file"}); }),
              HasSubstr("is not a folder"));
}

TEST_F(PlacedModel, AFileThatShrinksIsAnErrorOfTheCall) {
  auto model = open_placed_model(folder_ / "model", {}, place(3 * block_ + 100'000));
  logits_of(model.decoder);
  fs::resize_file(folder_ / "model" / "model.safetensors", 2000);
  EXPECT_THAT(error_of([&] { logits_of(model.decoder); }), HasSubstr("model.safetensors"));
}

TEST_F(PlacedModel, BlocksInOneMemoryShareIt) {
  auto model = new_llama();
  const auto& blocks = model.decoder->blocks;
  for (size_t i = 1; i < blocks.size(); ++i) {
    auto of_first = blocks[0]->parameters();
    auto own = blocks[i]->parameters();
    for (size_t j = 0; j < own.size(); ++j) own[j].set_data(of_first[j].data());
  }
  const auto expected = logits_of(model.decoder);
  const auto units = placement_units(model.module());
  EXPECT_EQ(units[1].shared, units[6].shared);
  const auto placement = placement_from_map(units, {{"", "cpu"}, {"blocks", "disk"}}, {});
  EXPECT_EQ(placement.streamed_bytes(), 6 * block_);
  place_model(model.decoder, placement, {.offload_folder = folder_ / "offload"});
  EXPECT_TRUE(at::equal(logits_of(model.decoder), expected));
}

TEST_F(PlacedModel, DeferredBlocksInOneMemoryAreMadeOnce) {
  const auto options = new_llama().decoder->options;
  const auto make = [&](bool deferred) {
    torch::manual_seed(7);
    auto model = init_module([&] { return models::decoder(options); }, {.deferred = deferred});
    const auto first = model->blocks[0]->parameters();
    for (size_t i = 1; i < model->blocks.size(); ++i) {
      auto own = model->blocks[i]->parameters();
      for (size_t j = 0; j < own.size(); ++j) own[j].set_data(first[j].data());
    }
    model->eval();
    return model;
  };
  auto plain = make(false), model = make(true);
  const auto placement = placement_from_map(placement_units(*model), {{"", "cpu"}, {"blocks", "disk"}}, {});
  EXPECT_EQ(placement.streamed_bytes(), 6 * block_);
  place_model(model, placement, {.offload_folder = folder_ / "offload"});
  EXPECT_TRUE(at::equal(logits_of(model), logits_of(plain)));
}

TEST_F(PlacedModel, StreamsDoNotTrain) {
  auto model = open_placed_model(folder_ / "model", {}, place(3 * block_ + 100'000));
  EXPECT_TRUE(has_streamed_units(model.module()));
  EXPECT_FALSE(has_streamed_units(new_llama().module()));
  EXPECT_THAT(error_of([&] { model.decoder(at::zeros({1, 4}, at::kLong)); }), HasSubstr("do not train"));
}

TEST_F(PlacedModel, ReadingTellsEveryByteOnce) {
  int64_t plain = 0, placed = 0;
  const auto sizes = models::open_model_meta(folder_ / "model");
  models::open_model(folder_ / "model", {.on_read = [&](int64_t bytes) { plain += bytes; }});
  open_placed_model(folder_ / "model", {.on_read = [&](int64_t bytes) { placed += bytes; }}, place(1 << 30));
  EXPECT_EQ(plain, 96 * 64 * 4 + 6 * block_ + 64 * 4);
  EXPECT_EQ(placed, plain);
}

// ---- cost

TEST(StreamCost, ProposesTheBatchThatHidesTheLink) {
  const auto model = new_llama();
  const auto placement = placement_from_map(placement_units(model.module()), {{"", "cpu"}, {"tokens", "0"}},
                                            {.device = c10::kCUDA, .max_memory = {{"cuda:0", 1 << 30}}});
  // 6 blocks of 61,440 weights and the head of 6,144; 1.48 MB at 1 MB/s, 100 MFLOP/s.
  const auto cost = stream_cost(model, placement, {.device = c10::kCUDA, .max_memory = {{"cuda:0", 1 << 30}}},
                                {.rows = 1, .capacity = 64, .prefill_chunk = 1}, 1e6, 1e8);
  EXPECT_EQ(cost.bytes, placement.streamed_bytes());
  EXPECT_NEAR(cost.seconds(), 1.478, 0.001);
  EXPECT_EQ(cost.hiding_batch, 198);
  ASSERT_TRUE(cost.fitting_batch);
  EXPECT_GT(*cost.fitting_batch, 1000);
  EXPECT_THAT(cost.describe(8), AllOf(HasSubstr("at most 5.41 tokens/s at batch 8"),
                                      HasSubstr("from about batch 198 on"), HasSubstr("--batch 198 is proposed")));
}

}  // namespace
}  // namespace levin::generate_tests
