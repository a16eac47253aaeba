#include "levin/core/progress_bar.h"

#include <gtest/gtest.h>

#include "levin/core/progress_bar_style.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

/// A file in memory, and a clock that the test moves.
class ProgressTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = ::open_memstream(&data_, &size_); }
  void TearDown() override {
    std::fclose(file_);
    std::free(data_);
  }
  ProgressOptions options(bool live) {
    return {.unit = "img", .per_step = 10, .file = file_, .live = live, .clock = [this] { return now_; }};
  }
  std::string text() {
    std::fflush(file_);
    return {data_, size_};
  }

  double now_ = 100;
  std::FILE* file_ = nullptr;
  char* data_ = nullptr;
  size_t size_ = 0;
  const testing::ScopedVariable color_{"NO_COLOR", "1"}, language_{"LANG", "C.UTF-8"}, all_{"LC_ALL", std::nullopt},
      characters_{"LC_CTYPE", std::nullopt}, width_{"LEVIN_TERMINAL_WIDTH", std::nullopt};
};

std::string rendered(const ProgressFrame& frame, const ProgressStyle& style) {
  std::string line;
  render_progress(frame, style, line);
  return line;
}

int columns(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(ProgressLine, LooksAsDocumented) {
  std::vector<std::pair<std::string, double>> numbers{{"loss", 0.4123}, {"lr", 5e-5}};
  const ProgressFrame frame{"Epoch 1/5", 145, 234, 1830.2, "img", 7, 4, &numbers};
  EXPECT_EQ(rendered(frame, {.width = 83}),
            "Epoch 1/5 ━━━━━━╸────  61% 145/234  1830 img/s  loss 0.412  lr 5.00e-05  0:07<0:04");
  EXPECT_EQ(rendered(frame, {.width = 83, .unicode = false}),
            "Epoch 1/5 ======-      61% 145/234  1830 img/s  loss 0.412  lr 5.00e-05  0:07<0:04");
  EXPECT_EQ(rendered(frame, {.width = 0}), "Epoch 1/5  61% 145/234  1830 img/s  loss 0.412  lr 5.00e-05  0:07<0:04");
}

TEST(ProgressLine, IsNeverWiderThanTheTerminal) {
  std::vector<std::pair<std::string, double>> numbers{{"loss", 0.4123}, {"accuracy", 0.9}};
  const ProgressFrame frame{"Über alles", 145, 234, 0.5, "img", 7000, 4, &numbers};
  for (int width = 12; width < 140; ++width) {
    const auto line = rendered(frame, {.width = width});
    EXPECT_LE(columns(line), std::max(width, 22)) << line;
  }
  EXPECT_NE(rendered(frame, {.width = 120}).find("2.00 s/img"), std::string::npos);
  EXPECT_NE(rendered(frame, {.width = 120}).find("1:56:40<0:04"), std::string::npos);
}

TEST(ProgressLine, ColoursDoNotCountAsColumns) {
  const ProgressFrame frame{"x", 10, 10, 0, "it", 1, 0, nullptr};
  const auto line = rendered(frame, {.width = 60, .color = true});
  EXPECT_NE(line.find("\x1b[32m"), std::string::npos);
  std::string bare;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b')
      i = line.find('m', i);
    else
      bare += line[i];
  }
  EXPECT_EQ(bare, rendered(frame, {.width = 60}));
}

TEST_F(ProgressTest, LiveRedrawsAtMostTenTimesASecond) {
  {
    ProgressBar bar("Train", 1000, options(true));
    for (int i = 0; i < 1000; ++i) {
      now_ += 0.001;
      bar.set("loss", 1.5);
      bar.advance();
    }
  }
  const auto out = text();
  const auto draws = std::count(out.begin(), out.end(), '\r');
  EXPECT_GE(draws, 10);
  EXPECT_LE(draws, 12);
  EXPECT_TRUE(out.ends_with("\x1b[K\n"));
  EXPECT_NE(out.find("100% 1000/1000  10000 img/s  loss 1.500  0:01"), std::string::npos) << out;
}

TEST_F(ProgressTest, PlainLinesAreFew) {
  {
    ProgressBar bar("Train", 100, options(false));
    for (int i = 0; i < 100; ++i) {
      now_ += 0.2;
      bar.advance();
    }
  }
  const auto out = text();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 10) << out;
  EXPECT_EQ(out.find('\r'), std::string::npos);
  EXPECT_TRUE(out.starts_with("Train  10% 10/100  50.0 img/s  0:02<0:18\n")) << out;
  EXPECT_TRUE(out.ends_with("Train 100% 100/100  50.0 img/s  0:20\n")) << out;
}

TEST_F(ProgressTest, QuickLoopsPrintOneLine) {
  {
    ProgressBar bar("Quick", 100, options(false));
    for (int i = 0; i < 100; ++i) bar.advance();
  }
  const auto out = text();
  EXPECT_EQ(out, "Quick 100% 100/100  0:00\n");
}

TEST_F(ProgressTest, SlowStepsAreNotSilent) {
  ProgressBar bar("Slow", 100, options(false));
  now_ += 11;
  bar.advance();
  EXPECT_EQ(text(), "Slow   1% 1/100  1.10 s/img  0:11<18:09\n");
}

TEST_F(ProgressTest, WidthComesFromTheLauncher) {
  const testing::ScopedVariable width("LEVIN_TERMINAL_WIDTH", "50");
  auto o = options(true);
  o.live = std::nullopt;
  ProgressBar bar("Train", 10, o);
  now_ += 1;
  bar.advance(5);
  const auto out = text();
  EXPECT_EQ(columns(out.substr(out.rfind('\r') + 1)) - 3, 49) << out;
}

TEST_F(ProgressTest, AResumedEpochCountsOnlyItsOwnStepsForTheRate) {
  ProgressBar bar("Train", 100, options(false));
  bar.start_at(50);
  now_ += 1;
  bar.advance(10);
  EXPECT_EQ(text(), "Train  60% 60/100  100 img/s  0:01<0:04\n");
}

TEST_F(ProgressTest, CountLeavesTheDrawingToTheCaller) {
  ProgressBar bar("Train", 100, options(true));
  const auto before = text();
  EXPECT_FALSE(bar.count());
  now_ += 0.2;
  EXPECT_TRUE(bar.count());
  EXPECT_EQ(text(), before);
  bar.set("loss", 0.5);
  bar.redraw();
  EXPECT_NE(text().find("2/100"), std::string::npos);
  EXPECT_NE(text().find("loss 0.500"), std::string::npos);
  EXPECT_FALSE(bar.count());
}

TEST_F(ProgressTest, APauseDoesNotCountForTheTime) {
  ProgressBar bar("Train", 100, options(true));
  now_ += 1;
  bar.advance(50);
  bar.pause();
  EXPECT_TRUE(text().ends_with("\r\x1b[K"));
  const auto size = text().size();
  now_ += 100;
  EXPECT_FALSE(bar.count(0));
  bar.redraw();
  EXPECT_EQ(text().size(), size);
  bar.resume();
  now_ += 1;
  bar.advance(50);
  bar.finish();
  EXPECT_TRUE(text().ends_with("100% 100/100  500 img/s  0:02\x1b[K\n")) << text();
}

TEST_F(ProgressTest, ADiscardedBarLeavesNothing) {
  {
    ProgressBar bar("Live", 10, options(true));
    bar.discard();
  }
  EXPECT_TRUE(text().ends_with("\r\x1b[K")) << text();
  const auto size = text().size();
  {
    ProgressBar bar("Plain", 10, options(false));
    bar.advance(10);
    bar.discard();
  }
  EXPECT_EQ(text().size(), size);
}

TEST_F(ProgressTest, LinesStandAboveTheBar) {
  ProgressBar bar("Train", 10, options(true));
  bar.print_above("hello", file_);
  const auto out = text();
  const auto line = out.find("\r\x1b[Khello\n\rTrain");
  EXPECT_NE(line, std::string::npos) << out;
}

}  // namespace
}  // namespace levin
