#include "levin/core/compile/compile_mode.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin {
namespace {

TEST(CompileMode, TakesABoolOrAWord) {
  EXPECT_FALSE(CompileMode());
  EXPECT_TRUE(CompileMode(true));
  EXPECT_EQ(CompileMode(true), CompileMode("graph"));
  EXPECT_TRUE(CompileMode("fuse").fuses());
  EXPECT_FALSE(CompileMode(false));
  const CompileMode graph = "graph";
  EXPECT_TRUE(graph);
  EXPECT_FALSE(graph.fuses());
  for (const char* word : {"fuse", "graph", "false"}) EXPECT_EQ(CompileMode(word).to_string(), word);
}

TEST(CompileMode, RefusesOtherWords) {
  try {
    CompileMode("max-autotune");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[compile] \"max-autotune\" is not known; true, \"graph\", \"fuse\" and false are");
  }
}

}  // namespace
}  // namespace levin
