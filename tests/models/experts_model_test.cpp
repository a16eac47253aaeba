// Decoders with experts: losses of routers and generated tokens as transformers has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/generate/generate.h"
#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/experts/router_loss.h"
#include "levin/nn/policy.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::expert_model_tests {
namespace {

namespace fs = std::filesystem;
using models::open_model;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

class ExpertModel : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const { return kFolders / GetParam(); }
  WeightFile outputs() const { return WeightFile(folder() / "balance.st"); }
};

TEST_P(ExpertModel, TheBalanceOfTheLoadIsThatOfTransformers) {
  for (const bool recomputed : {false, true}) {
    auto model = open_model(folder());
    if (recomputed) checkpoint_activations(*model.decoder, policy::by_class<models::DecoderBlock>());
    model.decoder->train();
    const auto file = outputs();
    const auto ids = file.read("ids"), targets = models::next_tokens(ids);
    const auto plain = model.decoder(ids, targets);
    model.decoder->options.balance_loss = 1;
    const auto loss = model.decoder(ids, targets);
    EXPECT_NEAR((loss - plain).item<double>(), file.read("loss").item<double>(), 1e-5);
    (loss - plain).backward();
    int64_t compared = 0;
    for (size_t i = 0; i < model.decoder->blocks.size(); ++i) {
      if (!model.decoder->blocks[i]->experts) continue;
      const auto grad = model.decoder->blocks[i]->experts->router.grad();
      EXPECT_LT((grad - file.read("grad." + std::to_string(i))).abs().max().item<double>(), 1e-5) << i;
      ++compared;
    }
    EXPECT_EQ(compared, 2);
    // Padding does not count. Where the padding attends makes the difference of the plain loss.
    const auto mask = file.read("mask");
    const nn::RouterRecords records;
    model.decoder->eval();
    model.decoder(ids, Tensor(), mask);
    EXPECT_NEAR(nn::balance_loss(records.records(), mask).item<double>(), file.read("masked").item<double>(), 1e-5);
    const auto evaluated = model.decoder(ids, targets);
    EXPECT_NEAR(evaluated.item<double>(), plain.item<double>(), 1e-6);  // the loss of routers is of training
  }
}

TEST_P(ExpertModel, GreedyTokensAreThoseOfTransformers) {
  auto model = open_model(folder());
  const auto expected = outputs().read("tokens");
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < expected.size(0); ++i) {
    const auto row = expected[i].slice(0, 0, 5);
    prompts.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + 5);
  }
  const auto rows = generate(model.decoder, prompts, {.max_new_tokens = 8, .temperature = 0});
  for (int64_t i = 0; i < expected.size(0); ++i) {
    const auto row = expected[i].slice(0, 5).contiguous();
    EXPECT_EQ(rows[static_cast<size_t>(i)].ids,
              std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, ExpertModel, ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
                         [](const auto& each) { return each.param; });

TEST(ExpertModels, AConfigThatIsNotSupportedIsOneLine) {
  auto config = read_file(kFolders / "mixtral/config.json");
  const auto with = [&](const std::string& key, const std::string& value) {
    return error_of([&] { models::new_model(models::ModelConfig(config, "config.json").with({{key, value}})); });
  };
  EXPECT_THAT(with("num_experts_per_tok", "5"), HasSubstr("more than the number of experts"));
  EXPECT_THAT(with("router_jitter_noise", "0.1"), HasSubstr("router_jitter_noise"));
  EXPECT_THAT(with("hidden_act", "\"tanh\""), HasSubstr("gated activation"));
  config = read_file(kFolders / "qwen3_moe/config.json");
  EXPECT_THAT(with("num_experts", "0"), HasSubstr("num_experts"));
  EXPECT_THAT(with("decoder_sparse_step", "\"a\""), HasSubstr("decoder_sparse_step"));
}

}  // namespace
}  // namespace levin::expert_model_tests
