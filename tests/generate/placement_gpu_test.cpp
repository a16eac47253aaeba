// Weights that are streamed to a GPU: the numbers of a model that is there all the time, within the memory that is
// allowed.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/devices/accelerator.h"
#include "levin/devices/memory_counter.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generate.h"
#include "levin/generate/placed_model.h"
#include "levin/generate/stream_cost.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/weight_stream.h"
#include "levin/testing/gpu.h"
#include "levin/testing/scoped_variable.h"
#include "levin/testing/temporary_folder.h"

namespace levin::generate_tests {
namespace {

using Ids = std::vector<int64_t>;
const std::vector<Ids> kStreamPrompts{{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}};

constexpr const char* kStreamed = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512,
  "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
  "intermediate_size": 2048, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu",
  "tie_word_embeddings": true})";

class PlacementGpu : public testing::GpuTest {
 protected:
  static models::LanguageModel new_streamed_model(at::ScalarType dtype) {
    torch::manual_seed(3);
    auto model = models::new_model(kStreamed, {.dtype = dtype});
    const at::NoGradGuard no_grad;
    for (auto& parameter : model.decoder->parameters())
      if (parameter.dim() > 1) parameter.mul_(4);
    model.decoder->eval();
    return model;
  }

  void TearDown() override {
    if (testing::has_gpu()) {
      const auto& kind = accelerator_of(device_);
      kind.limit_memory(device_, kind.info(device_).total_memory);
    }
  }

  const c10::Device device_ = c10::Device("cuda:0");
};

void expect_same(const std::vector<Generated>& found, const std::vector<Generated>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i].ids) << what << " " << i;
    EXPECT_EQ(found[i].logprobs, expected[i].logprobs) << what << " " << i;
  }
}

TEST_F(PlacementGpu, HostAndDiskGiveTheNumbersOfTheDevice) {
  // The product before a norm cannot have the weight of a block that is not there yet.
  const testing::ScopedVariable norms_apart("LEVIN_ROW_NORM", "0");
  const testing::TemporaryFolder folder;
  models::save_model(new_streamed_model(at::kBFloat16), folder.path() / "model");
  GenerateOptions options{.max_new_tokens = 48, .temperature = 0, .batch = 2};
  options.cuda_graphs = false;
  for (const std::string quantize : {"", "int8-weights", "nf4"}) {
    const models::OpenModelOptions open{.device = device_, .quantize = quantize};
    auto plain = models::open_model(folder.path() / "model", open);
    const auto expected = generate(plain.decoder, kStreamPrompts, options);
    const auto units = placement_units(plain.module());
    using Map = std::vector<std::pair<std::string, std::string>>;
    for (const Map& map : {Map{{"", "cpu"}}, Map{{"", "disk"}}, Map{{"", "cuda:0"}, {"blocks", "cpu"}},
                           Map{{"", "0"}, {"blocks.3", "cpu"}},
                           Map{{"", "cpu"}, {"tokens", "cuda:0"}, {"blocks.2", "disk"}, {"blocks.7", "disk"}}}) {
      const auto placement = placement_from_map(units, map, {.device = device_});
      auto placed =
          open_placed_model(folder.path() / "model", open, placement, {.offload_folder = folder.path() / "offload"});
      expect_same(generate(placed.decoder, kStreamPrompts, options), expected, quantize + placement.describe());
    }
  }
}

TEST_F(PlacementGpu, GraphsAreLeftOutWithoutAWord) {
  auto model = new_streamed_model(at::kBFloat16);
  const auto placement = placement_from_map(placement_units(model.module()), {{"", "cpu"}}, {.device = device_});
  place_model(model.decoder, placement);
  const auto plain =
      generate(model.decoder, kStreamPrompts, {.max_new_tokens = 8, .temperature = 0, .cuda_graphs = false});
  const auto asked =
      generate(model.decoder, kStreamPrompts, {.max_new_tokens = 8, .temperature = 0, .cuda_graphs = true});
  expect_same(asked, plain, "graphs");
}

/// Long passes whose kernels take longer than copies, and short ones for which copies take longer: no buffer is written
/// while it is read.
TEST_F(PlacementGpu, BuffersAreNotOverwrittenWhileTheyAreUsed) {
  const at::NoGradGuard no_grad;
  auto plain = new_streamed_model(at::kBFloat16);
  auto placed = new_streamed_model(at::kBFloat16);
  plain.decoder->to(device_);
  place_model(placed.decoder, placement_from_map(placement_units(placed.module()), {{"", "cpu"}}, {.device = device_}));
  for (const int64_t rows : {1, 64, 2, 96, 1}) {
    const auto tokens = at::randint(512, {rows, 512}, at::TensorOptions().dtype(at::kLong).device(device_));
    std::vector<at::Tensor> found;
    for (int i = 0; i < 3; ++i) found.push_back(placed.decoder->hidden_states(tokens));
    const auto expected = plain.decoder->hidden_states(tokens);
    for (const auto& each : found) EXPECT_TRUE(at::equal(each, expected)) << rows;
  }
}

TEST_F(PlacementGpu, TheBudgetIsNotExceeded) {
  const auto& kind = accelerator_of(device_);
  const testing::TemporaryFolder folder;
  models::save_model(new_streamed_model(at::kBFloat16), folder.path() / "model");
  const models::OpenModelOptions open{.device = device_};
  const auto sizes = models::open_model_meta(folder.path() / "model", open);
  const DecodeSizes decode{.rows = 3, .capacity = 64, .prefill_chunk = 512};
  const auto units = placement_units(sizes.module());
  const auto workspace = decode_workspace(sizes, decode, device_);
  const auto budget = workspace + units[0].bytes + 4 * units[1].bytes;
  const auto placement =
      place_units(units, {.device = device_, .max_memory = {{"cuda:0", budget}}, .workspace = workspace});
  EXPECT_GT(placement.streamed_bytes(), 0);
  EXPECT_GT(placement.bytes_at("cuda:0"), units[0].bytes);
  kind.empty_cache(device_);
  const auto before = kind.memory(device_);
  kind.reset_peak_memory(device_);
  auto model = open_placed_model(folder.path() / "model", open, placement);
  generate(model.decoder, kStreamPrompts, {.max_new_tokens = 40, .temperature = 0});
  const auto after = kind.memory(device_);
  EXPECT_LE(after.peak_allocated - before.allocated, budget);
  EXPECT_LE(after.peak_reserved - before.reserved, budget + (40 << 20));  // blocks of the allocator are rounded up
  // All of the weights are more than what was ever there.
  int64_t all = 0;
  for (const auto& unit : units) all += unit.bytes;
  EXPECT_GT(all, placement.bytes_at("cuda:0") + placement.buffer_bytes());
}

TEST_F(PlacementGpu, BlocksInOneMemoryAreStreamedFromIt) {
  const at::NoGradGuard no_grad;
  const auto options = new_streamed_model(at::kBFloat16).decoder->options;
  auto model = init_module([&] { return models::decoder(options); },
                           {.device = device_, .dtype = at::kBFloat16, .deferred = true});
  const auto of_first = model->blocks[0]->parameters();
  for (size_t i = 1; i < model->blocks.size(); ++i) {
    auto own = model->blocks[i]->parameters();
    for (size_t j = 0; j < own.size(); ++j) own[j].set_data(of_first[j].data());
  }
  const auto units = placement_units(*model);
  ASSERT_GE(units[1].shared, 0);
  const auto placement = placement_from_map(units, {{"", "cuda:0"}, {"blocks", "cpu"}}, {.device = device_});
  EXPECT_EQ(placement.bytes_at("cpu"), units[1].bytes);
  EXPECT_EQ(placement.streamed_bytes(), 8 * units[1].bytes);
  place_model(model, placement);
  model->eval();
  const auto logits = model(at::arange(32, at::TensorOptions().dtype(at::kLong).device(device_)).view({1, 32}));
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
  EXPECT_GT(logits.std().item<double>(), 0);
}

TEST_F(PlacementGpu, TheLinkIsMeasured) {
  EXPECT_GT(measured_link(device_), 1e9);
  EXPECT_LT(measured_link(device_), 1e12);
}

}  // namespace
}  // namespace levin::generate_tests
