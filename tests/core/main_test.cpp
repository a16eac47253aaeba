#include "levin/core/main.h"

#include <stdexcept>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/capture.h"

namespace {

using levin::ShapeErrorNote;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The line of run_main for what the body throws.
std::string line_of(const std::function<void()>& body) {
  std::string name = "program";
  char* words[] = {name.data(), nullptr};
  return levin::testing::captured_stderr(
      [&] { EXPECT_EQ(levin::run_main(1, words, [&](levin::Args&) { body(); }), 1); });
}

void multiply_misfits() {
  at::mm(at::ones({2, 3}), at::ones({2, 3}));
}

TEST(ShapeErrorNotes, AreReadWhileTheyAreThereAndWhereTheErrorTookThem) {
  const auto plain = line_of(multiply_misfits);
  EXPECT_THAT(plain, HasSubstr("shapes"));
  {
    const ShapeErrorNote one("of one"), two("of two"), again("of two");
    EXPECT_THAT(line_of(multiply_misfits), HasSubstr(" (of one) (of two)\n"));
    EXPECT_THAT(line_of([] { throw std::runtime_error("no such size"); }), Not(HasSubstr("of one")));
  }
  EXPECT_EQ(line_of(multiply_misfits), plain) << "notes are gone with their owners";
  const auto owner_ends_by_it = [] {
    const ShapeErrorNote note("of a run");
    multiply_misfits();
  };
  EXPECT_THAT(line_of(owner_ends_by_it), HasSubstr(" (of a run)\n"));
  EXPECT_EQ(line_of(multiply_misfits), plain) << "what was read is gone";
}

}  // namespace
