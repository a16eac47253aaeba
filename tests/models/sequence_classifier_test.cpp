// Heads that classify whole sequences, new heads for fine-tuning, and several texts in one row.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/io/weights/weights.h"
#include "levin/models/decoder_positions.h"
#include "levin/models/folder.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::sequence_classifier_tests {
namespace {

namespace fs = std::filesystem;
using models::open_model;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";
const std::vector<std::string> kTwo{"negative", "positive"};

double largest(const Tensor& x) {
  return x.abs().max().item<double>();
}

TEST(SequenceClassifier, DecodersEqualTransformers) {
  for (const std::string name : {"gpt2_sequence", "llama_sequence", "opt_sequence"}) {
    SCOPED_TRACE(name);
    const WeightFile file(kFolders / name / "outputs.st");
    auto model = open_model(kFolders / name);
    EXPECT_THAT(models::label_names(model.config), ElementsAre("l0", "l1", "l2"));
    const auto ids = file.read("ids"), mask = file.read("mask"), expected = file.read("head");
    const auto logits = model.decoder(ids, Tensor(), mask);
    ASSERT_EQ(logits.sizes(), expected.sizes());
    EXPECT_LT(largest(logits - expected), 1e-5);
    // Without the mask it is the padding token that ends a row.
    EXPECT_LT(largest(model.decoder(ids) - expected), 1e-5);
    (logits * at::cos(at::arange(logits.numel(), at::kFloat)).view_as(logits)).sum().backward();
    const auto grad = model.decoder->score->weight.grad();
    const auto projected = at::matmul(grad, at::cos(at::arange(grad.size(1), grad.options())));
    EXPECT_LT(largest(projected - file.read("grad.score.weight")), 1e-4);

    const testing::TemporaryFolder temporary;
    models::save_model(model, temporary / "saved");
    EXPECT_TRUE(WeightFile(temporary / "saved").contains("score.weight"));
    EXPECT_TRUE(open_model(temporary / "saved").decoder(ids, Tensor(), mask).equal(logits));
    EXPECT_THAT(error_of([&] { model.decoder(ids, ids); }), HasSubstr("classifier"));
  }
}

TEST(SequenceClassifier, HeadIsNewForOtherLabels) {
  for (const std::string name : {"gpt2", "gemma", "gpt_neox", "opt_post", "bloom", "qwen2", "distilbert_masked", "bert",
                                 "bert_masked", "roberta_masked", "bert_sequence", "llama_sequence"}) {
    SCOPED_TRACE(name);
    auto model = open_model(kFolders / name, {.head = "sequence_classification", .labels = kTwo, .pad_token = 0});
    EXPECT_EQ(models::label_names(model.config), kTwo);
    EXPECT_FALSE(model.notes.empty());
    EXPECT_FALSE(models::head_parameters(model).empty());
    const auto ids = at::randint(2, 50, {3, 7});
    const auto logits = model.decoder ? model.decoder(ids) : model.encoder(ids);
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{3, 2}));
    EXPECT_GT(largest(logits), 0);

    const testing::TemporaryFolder temporary;
    models::save_model(model, temporary / "saved");
    auto again = open_model(temporary / "saved");
    EXPECT_EQ(models::label_names(again.config), kTwo);
    EXPECT_TRUE((again.decoder ? again.decoder(ids) : again.encoder(ids)).equal(logits));
    // The same labels: nothing is new.
    auto reopened = open_model(temporary / "saved", {.head = "sequence_classification", .labels = kTwo});
    EXPECT_TRUE(reopened.notes.empty());
    EXPECT_TRUE((reopened.decoder ? reopened.decoder(ids) : reopened.encoder(ids)).equal(logits));
  }
}

TEST(SequenceClassifier, MistakesAreOneLine) {
  const auto open = [](const char* name, models::OpenModelOptions options) {
    return error_of([&] { open_model(kFolders / name, options); });
  };
  EXPECT_THAT(open("gpt2", {.head = "sequence_classification"}), HasSubstr("score.weight"));
  EXPECT_THAT(open("llama_sequence", {.head = "causal_lm"}), HasSubstr("lm_head.weight"));
  EXPECT_THAT(open("gpt2", {.head = "masked_lm"}), AllOf(HasSubstr("masked_lm"), HasSubstr("causal_lm")));
  EXPECT_THAT(open("gpt2", {.labels = kTwo}), HasSubstr("causal_lm"));
  EXPECT_THAT(open("bert", {.head = "sequence_classification", .labels = {"a", "a"}}), HasSubstr("twice"));
  EXPECT_THAT(open("bert", {.head = "sequence_classification", .labels = {"a"}}), HasSubstr("two labels"));
}

TEST(PackedTexts, EqualTextsAlone) {
  const at::NoGradGuard no_grad;
  for (const std::string name : {"gpt2", "llama", "mistral", "bloom", "gemma2", "gpt_neox"}) {
    SCOPED_TRACE(name);
    auto model = open_model(kFolders / name);
    const auto first = at::randint(2, 50, {1, 4}), second = at::randint(2, 50, {1, 6}),
               third = at::randint(2, 50, {1, 1});
    const auto row = at::cat({first, second, third, at::zeros({1, 1}, at::kLong)}, 1);
    const auto mask = at::tensor({1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 0}, at::kLong).unsqueeze(0);
    const auto logits = model.decoder(row, Tensor(), mask);
    EXPECT_LT(largest(logits.slice(1, 0, 4) - model.decoder(first)), 2e-5);
    EXPECT_LT(largest(logits.slice(1, 4, 10) - model.decoder(second)), 2e-5);
    EXPECT_LT(largest(logits.slice(1, 10, 11) - model.decoder(third)), 2e-5);
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
  }
  const auto mask = at::tensor({0, 0, 1, 1, 0, 1, 2, 2, 5, 0}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(models::token_positions(mask).equal(at::tensor({0, 0, 0, 1, 1, 2, 0, 1, 0, 0}, at::kLong).unsqueeze(0)));
}

}  // namespace
}  // namespace levin::sequence_classifier_tests
