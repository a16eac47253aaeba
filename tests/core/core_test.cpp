#include <gtest/gtest.h>

#include "levin/core/batch.h"
#include "levin/core/each_tensor.h"
#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;

struct Inner {
  Tensor a;
  std::optional<Tensor> b;
};
struct Nest {
  std::vector<Tensor> list;
  std::map<std::string, Inner> named;
  std::tuple<Tensor, int> pair;
  int64_t count = 0;
  std::string text;
};

TEST(EachTensor, WalksNestedValues) {
  auto t = [] { return torch::ones({1}); };
  Nest nest{{t(), t()}, {{"x", {t(), t()}}, {"y", {t(), {}}}}, {t(), 3}, 4, "text"};
  int seen = 0;
  each_tensor(nest, [&](Tensor& tensor) {
    tensor = tensor + 1;
    ++seen;
  });
  EXPECT_EQ(seen, 6);
  EXPECT_EQ(nest.named["x"].b->item<float>(), 2);
}

TEST(Batch, UnknownNameListsTheKnownOnes) {
  const Batch batch{{"image", torch::ones({2})}, {"label", torch::ones({2})}};
  EXPECT_EQ(error_of([&] { (void)batch["lable"]; }),
            "[batch] name \"lable\" is not known; did you mean \"label\"? (known: image, label)");
}

TEST(Args, ReadsBothFormsAndRefusesWords) {
  const char* argv[] = {"prog", "--epochs", "3", "--lr=0.5", "--quiet"};
  Args args(5, const_cast<char**>(argv));
  EXPECT_EQ(args.get("epochs", 1), 3);
  EXPECT_EQ(args.get("lr", 0.1), 0.5);
  EXPECT_TRUE(args.has("quiet"));
  EXPECT_NO_THROW(args.check_all_used());
  EXPECT_EQ(args.get("missing", "x"), "x");
  EXPECT_TRUE(args.get("quiet", false));
  EXPECT_TRUE(args.get("absent", true));
  const char* bad[] = {"prog", "--epochs", "three", "--epcohs", "2"};
  Args wrong(5, const_cast<char**>(bad));
  EXPECT_THROW((void)wrong.get("epochs", 1), Error);
  EXPECT_THROW(wrong.check_all_used(), Error);
}

TEST(Args, ReadsFlagsOfYesAndNo) {
  const char* argv[] = {"prog", "--compile", "true", "--shuffle=no", "--fast", "--deep", "maybe"};
  Args args(7, const_cast<char**>(argv));
  EXPECT_TRUE(args.get("compile", false));
  EXPECT_FALSE(args.get("shuffle", true));
  EXPECT_TRUE(args.get("fast", false));
  EXPECT_FALSE(args.get("absent", false));
  EXPECT_EQ(error_of([&] { (void)args.get("deep", false); }), "[args] --deep \"maybe\" is not true or false");
}

TEST(Words, FormatsForPeople) {
  EXPECT_EQ(format_bytes(1234567), "1.23 MB");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_count(86567656), "86.6M");
  EXPECT_EQ(format_duration(62), "1:02");
}

}  // namespace
}  // namespace levin
