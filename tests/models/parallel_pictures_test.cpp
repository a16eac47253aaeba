// The pictures of tensor and expert parallelism in the docs, drawn from what each rank really has.
// LEVIN_WRITE_PICTURES=1 writes them.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "levin/distributed/single.h"
#include "levin/models/decoder.h"
#include "levin/nn/tensor/split.h"
#include "levin/plots/drawing.h"
#include "levin/testing/paths.h"

namespace levin::parallel_pictures_tests {
namespace {

constexpr int kRanks = 4;
constexpr std::array<uint32_t, kRanks> kColors{0x2563eb, 0xf59e0b, 0x10b981, 0x8b5cf6};
constexpr uint32_t kInk = 0x27272a;

void expect_drawn(const std::string& name, const Drawing& drawing) {
  const auto path = std::filesystem::path(testing::source_dir()) / "docs/images" / name;
  const auto drawn = to_svg(drawing);
  if (std::getenv("LEVIN_WRITE_PICTURES")) std::ofstream(path, std::ios::binary) << drawn;
  std::ifstream file(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), drawn) << name;
}

void draw_legend(Drawing& drawing, double y) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const double x = 24 + 90.0 * rank;
    drawing.rect(x, y - 10, 12, 12, kColors[static_cast<size_t>(rank)], 2);
    drawing.text(x + 18, y, "rank " + std::to_string(rank), {});
  }
}

struct Matrix {
  std::string parameter, title, below;
};

/// What the ranks have of a matrix, as rectangles of [out, in].
void draw_matrix(Drawing& drawing, const Matrix& matrix, const std::vector<std::shared_ptr<TensorSplit>>& splits,
                 double x, double y) {
  for (int rank = 0; rank < kRanks; ++rank)
    for (const auto& each : splits[static_cast<size_t>(rank)]->parameters()) {
      if (each.name != matrix.parameter) continue;
      ASSERT_TRUE(each.is_split());
      for (const auto& box : each.slice.boxes())
        drawing.rect(x + static_cast<double>(box.start[1]), y + static_cast<double>(box.start[0]),
                     static_cast<double>(box.sizes[1]) - 1, static_cast<double>(box.sizes[0]) - 1,
                     kColors[static_cast<size_t>(rank)]);
    }
  drawing.text(x, y - 8, matrix.title, {.size = 12, .color = kInk, .bold = true});
}

TEST(ParallelPictures, TensorParallelIsDrawnFromTheSlicesOfTheRanks) {
  std::vector<std::shared_ptr<TensorSplit>> splits;
  std::vector<models::Decoder> decoders;
  for (int rank = 0; rank < kRanks; ++rank) {
    decoders.emplace_back(models::DecoderOptions{.vocab_size = 120,
                                                 .num_layers = 1,
                                                 .num_heads = 8,
                                                 .hidden_dim = 64,
                                                 .mlp_dim = 128,
                                                 .bias = false,
                                                 .norm = "rms",
                                                 .activation = "silu_gated",
                                                 .positions = "rotary",
                                                 .tied_head = false});
    splits.push_back(
        split_tensors(*decoders.back(), {.size = kRanks}, std::make_shared<ImaginedCollective>(rank, kRanks)));
  }
  Drawing drawing(760, 330);
  drawing.text(24, 28, "A decoder block over 4 ranks: which rank has which part of a weight [out, in]",
               {.size = 14, .color = kInk, .bold = true});
  const std::vector<Matrix> matrices{{"blocks.0.attention.qkv.weight", "qkv", ""},
                                     {"blocks.0.attention.out.weight", "out", "sum"},
                                     {"blocks.0.mlp.gate.weight", "gate", ""},
                                     {"blocks.0.mlp.up.weight", "up", ""},
                                     {"blocks.0.mlp.down.weight", "down", "sum"}};
  const std::array<double, 5> places{24, 148, 300, 400, 524};
  for (size_t i = 0; i < matrices.size(); ++i) draw_matrix(drawing, matrices[i], splits, places[i], 72);
  for (const double x : {106.0, 482.0}) {
    drawing.line({{x, 104}, {x + 30, 104}}, {.color = kInk});
    drawing.text(x + 15, 98, "no send", {.size = 10, .anchor = 0.5});
  }
  for (const double x : {242.0, 682.0}) {
    drawing.line({{x - 22, 104}, {x + 30, 104}}, {.color = 0xdc2626, .width = 2});
    drawing.text(x + 4, 94, "all-reduce", {.size = 10, .color = 0xdc2626, .anchor = 0.5});
  }
  drawing.text(24, 288,
               "Rows of qkv, gate and up are split by heads and columns of the MLP; columns of out and down alike.",
               {.size = 12});
  draw_legend(drawing, 312);
  expect_drawn("tensor_parallel.svg", drawing);
}

/// Eight experts over four ranks, two experts a token: rows that a rank sends to each other one.
TEST(ParallelPictures, ExpertParallelIsDrawnFromTheExpertsOfEachRank) {
  constexpr int kExperts = 8, kTokens = 12;
  Drawing drawing(760, 300);
  drawing.text(24, 28, "8 experts over 4 ranks, 2 experts a token: tokens go to the ranks of their experts",
               {.size = 14, .color = kInk, .bold = true});
  const auto owner_of = [](int64_t expert) {
    for (int rank = 0; rank < kRanks; ++rank)
      if (const auto share = Share::of(kExperts, kRanks, rank);
          expert >= share.first && expert < share.first + share.count)
        return rank;
    return -1;
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    const double x = 24 + 184.0 * rank;
    const auto color = kColors[static_cast<size_t>(rank)];
    const auto share = Share::of(kExperts, kRanks, rank);
    EXPECT_EQ(share.count, kExperts / kRanks);
    for (int64_t i = 0; i < share.count; ++i) {
      drawing.rect(x + 80.0 * static_cast<double>(i), 196, 72, 30, color, 4);
      drawing.text(x + 80.0 * static_cast<double>(i) + 36, 215, "expert " + std::to_string(share.first + i),
                   {.size = 11, .color = 0xffffff, .anchor = 0.5});
    }
    drawing.text(x, 56, "tokens of rank " + std::to_string(rank), {.size = 12, .color = kInk, .bold = true});
    for (int token = 0; token < kTokens; ++token) {
      const double at = x + 13.0 * token;
      for (int choice = 0; choice < 2; ++choice) {
        // A router's choice for the picture: spread, and not even.
        const int64_t expert = (token * (rank + 3) + choice * (token % 3 + 1) + rank) % kExperts;
        const int to = owner_of(expert);
        ASSERT_GE(to, 0);
        const auto place = Share::of(kExperts, kRanks, to);
        const double target = 24 + 184.0 * to + 80.0 * static_cast<double>(expert - place.first) + 36;
        drawing.line({{at + 5, 80}, {target, 194}}, {.color = kColors[static_cast<size_t>(to)], .width = 0.7});
      }
      drawing.rect(at, 68, 10, 12, color, 2);
    }
  }
  drawing.text(24, 254,
               "All-to-all there, the products of each expert over its rows, all-to-all back, and the sum of a "
               "token's two results.",
               {.size = 12});
  draw_legend(drawing, 282);
  expect_drawn("expert_parallel.svg", drawing);
}

}  // namespace
}  // namespace levin::parallel_pictures_tests
