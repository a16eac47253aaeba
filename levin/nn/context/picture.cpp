#include "levin/nn/context/picture.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/nn/context/blocks.h"
#include "levin/plots/axes.h"

namespace levin::nn {
namespace {

constexpr double kCell = 34, kTop = 92, kLeft = 70, kBetween = 50, kBar = 22, kLetters = 12;
constexpr int64_t kTokens = 16;  // of a chunk
constexpr std::array<uint32_t, 8> kInks{0x93c5fd, 0xfcd34d, 0x86efac, 0xf9a8d4, 0xc4b5fd, 0xfdba74, 0x67e8f9, 0xd4d4d8};

uint32_t ink_of(int rank) {
  return kInks[static_cast<size_t>(rank) % kInks.size()];
}

/// The chunk of the sequence that a token of a rank is in.
int64_t chunk_of(const ContextLayout& layout, int64_t length, int rank, int64_t token) {
  for (const auto& run : layout.runs(length, rank)) {
    if (token < run.count) return (run.first + token) / kTokens;
    token -= run.count;
  }
  return 0;
}

/// One square of chunks by chunks.
void draw_square(Drawing& drawing, const ContextLayout& layout, double left) {
  const int64_t chunks = 2 * layout.size, length = chunks * kTokens;
  const double side = kCell * static_cast<double>(chunks);
  drawing.rect(left, kTop, side, side, ink::kShade);
  for (int rank = 0; rank < layout.size; ++rank)
    for (int owner = 0; owner < layout.size; ++owner) {
      const auto step = std::to_string((rank + layout.size - owner) % layout.size);
      for (const auto& block : context_blocks(layout, length, rank, owner, /*causal=*/true, /*window=*/0))
        for (auto q = block.queries.first; q < block.queries.first + block.queries.count; q += kTokens)
          for (auto k = block.keys.first; k < block.keys.first + block.keys.count; k += kTokens) {
            const auto row = chunk_of(layout, length, rank, q), column = chunk_of(layout, length, owner, k);
            if (column > row) continue;  // above the diagonal of a causal block
            const double x = left + kCell * static_cast<double>(column), y = kTop + kCell * static_cast<double>(row);
            if (column < row)
              drawing.rect(x, y, kCell, kCell, ink_of(rank));
            else
              drawing.area({{x, y}, {x + kCell, y + kCell}}, y + kCell, ink_of(rank));
            drawing.text(x + kCell * (column < row ? 0.5 : 0.3), y + kCell * (column < row ? 0.63 : 0.85), step,
                         {.size = kLetters, .color = ink::kText, .anchor = 0.5});
          }
    }
  for (int64_t i = 0; i <= chunks; ++i) {
    const double at = kCell * static_cast<double>(i);
    drawing.line({{left, kTop + at}, {left + side, kTop + at}}, {.color = ink::kPaper});
    drawing.line({{left + at, kTop}, {left + at, kTop + side}}, {.color = ink::kPaper});
  }
  for (int rank = 0; rank < layout.size; ++rank)
    for (const auto& run : layout.runs(length, rank))
      for (auto token = run.first; token < run.first + run.count; token += kTokens)
        drawing.text(left - 8, kTop + kCell * (static_cast<double>(token / kTokens) + 0.63),
                     fmt::format("rank {}", rank), {.size = kLetters, .anchor = 1});
}

/// The work of each rank, as bars.
void draw_work(Drawing& drawing, const ContextLayout& layout, double left, double top, double width) {
  const int64_t length = 2 * layout.size * kTokens;
  const auto all = static_cast<double>(length * (length + 1) / 2);
  for (int rank = 0; rank < layout.size; ++rank) {
    const auto part = static_cast<double>(context_work(layout, length, rank, true, 0)) / all;
    const double y = top + kBar * rank;
    drawing.text(left - 8, y + 13, fmt::format("rank {}", rank), {.size = kLetters, .anchor = 1});
    drawing.rect(left, y, std::max(2.0, part * width), kBar - 5, ink_of(rank), 2);
    drawing.text(left + part * width + 6, y + 13, fmt::format("{:.0f} %", 100 * part), {.size = kLetters});
  }
}

}  // namespace

Drawing draw_context(int ranks) {
  LEVIN_CHECK(ranks >= 1 && ranks <= 8, "[context_parallel] a picture has 1 to 8 ranks, not ", ranks);
  const double side = kCell * 2 * ranks, bars = kTop + side + 34;
  Drawing drawing(2 * (kLeft + side) + kBetween + 24, bars + kBar * ranks + 12);
  drawing.text(24, 30, "Causal attention over ranks: who computes which block",
               {.size = 16, .color = ink::kText, .bold = true});
  drawing.text(24, 50, "Rows are queries, columns keys; a number is the step of the ring in which the keys are here.",
               {.size = kLetters});
  double left = kLeft;
  for (const bool balanced : {false, true}) {
    const ContextLayout layout{ranks, balanced};
    drawing.text(left, kTop - 12, balanced ? "balanced: two chunks each" : "one run each",
                 {.size = kLetters, .color = ink::kText, .bold = true});
    draw_square(drawing, layout, left);
    drawing.text(left, bars - 10, "work", {.size = kLetters, .color = ink::kText, .bold = true});
    draw_work(drawing, layout, left, bars, side * 1.6);
    left += side + kBetween + kLeft;
  }
  return drawing;
}

}  // namespace levin::nn
