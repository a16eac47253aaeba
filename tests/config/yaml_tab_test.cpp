#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/testing/error_of.h"

namespace levin::config {
namespace {

using testing::error_of;

std::string refusal(const std::string& yaml) {
  return error_of([&] { (void)parse_yaml(yaml, "run.yaml", "levin fit"); });
}

TEST(YamlTab, IsToldByLineAndWithWhatToWrite) {
  const std::string what = "a tab indents this line, and YAML takes spaces only; write two spaces for each level";
  EXPECT_EQ(refusal("trainer:\n\tmax_epochs: 1\n"), "[levin fit] run.yaml:2: " + what);
  EXPECT_EQ(refusal("trainer:\n  max_epochs: 1\n\tprecision: 32-true\n"), "[levin fit] run.yaml:3: " + what);
  EXPECT_EQ(refusal("trainer:\n  max_epochs: 1\n  \tprecision: 32-true\n"), "[levin fit] run.yaml:3: " + what);
  EXPECT_EQ(refusal("a:\n\t- 1\n\t- 2\n"), "[levin fit] run.yaml:2: " + what);
  EXPECT_EQ(refusal("\ta: 1\n"), "[levin fit] run.yaml:1: " + what);
  // A tab elsewhere is none of its business.
  EXPECT_EQ(refusal("a: [1,\n\t2]\n"), "no error");
  EXPECT_EQ(refusal("a:\t1\nb: 2\t# two\n"), "no error");
  EXPECT_THAT(refusal("a: 1\tb: 2\nc: [\n"), ::testing::HasSubstr("the YAML parser says"));
}

TEST(YamlWords, SayWhatIsWrongWithTheLine) {
  EXPECT_THAT(refusal("trainer:\n  max_epochs: 1\n   precision: 32-true\n"),
              ::testing::HasSubstr("run.yaml:3: a second \": \" in a line, or an entry that is indented more than the "
                                   "ones beside it (the YAML parser says: illegal map value)"));
  EXPECT_THAT(refusal("name: a: b\n"), ::testing::HasSubstr("run.yaml:1: a second \": \" in a line"));
  EXPECT_THAT(refusal("a: {b: 1\n"), ::testing::HasSubstr("a \"{\" without its \"}\""));
  EXPECT_THAT(refusal("a: \"C:\\data\"\n"), ::testing::HasSubstr("take single quotes"));
}

}  // namespace
}  // namespace levin::config
