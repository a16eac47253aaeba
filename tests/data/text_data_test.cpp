#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/data/loader.h"
#include "levin/data/table.h"
#include "levin/data/text_dataset.h"
#include "levin/data/token_dataset.h"
#include "levin/io/weights/npy.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

Tensor longs(std::vector<int64_t> values) {
  return at::tensor(values);
}

class TextData : public testing::FolderTest {
 protected:
  std::string put(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  template <class T>
  std::string put_tokens(const std::string& name, const std::vector<T>& tokens) const {
    return put(name, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)));
  }
};

TEST_F(TextData, TokensAreWindowsAndTheirTargetsOneFurther) {
  std::vector<uint16_t> tokens(11);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(65525 + i);
  const auto path = put_tokens("a.bin", tokens);
  const TokenDataset data(path, {.length = 5});
  EXPECT_EQ(data.tokens(), 11);
  ASSERT_EQ(data.size(), 2);
  const auto second = data.get(1);
  EXPECT_TRUE(at::equal(second["input"], longs({65530, 65531, 65532, 65533, 65534})));
  EXPECT_TRUE(at::equal(second["target"], longs({65531, 65532, 65533, 65534, 65535})));
  // One token fewer, and the second window has no target for its last.
  EXPECT_EQ(TokenDataset(put_tokens("b.bin", std::vector<uint16_t>(10)), {.length = 5}).size(), 1);
  const TokenDataset dense(path, {.length = 5, .stride = 1});
  ASSERT_EQ(dense.size(), 6);
  EXPECT_EQ(dense.get(5)["target"][4].item<int64_t>(), 65535);
  for (auto& batch : make_loader(dense, {.batch_size = 6, .num_workers = 2}))
    EXPECT_EQ(batch["input"].sizes(), at::IntArrayRef({6, 5}));
}

TEST_F(TextData, TokensOfAllWidths) {
  const std::vector<uint32_t> wide{1, 70000, 4000000000U};
  const TokenDataset raw(put_tokens("w.bin", wide), {.length = 2, .dtype = "uint32"});
  EXPECT_TRUE(at::equal(raw.get(0)["target"], longs({70000, 4000000000})));
  for (const auto type : {at::kUInt16, at::kUInt32, at::kInt, at::kLong}) {
    const auto array = longs({3, 4, 5, 6}).to(type);
    const TokenDataset data(put("x.npy", detail::write_npy(array)), {.length = 3});
    EXPECT_TRUE(at::equal(data.get(0)["input"], longs({3, 4, 5})));
  }
  // Files stand side by side, and no window crosses.
  const TokenDataset both(std::vector<fs::path>{put("x.npy", detail::write_npy(longs({1, 2, 3}))),
                                                put("y.npy", detail::write_npy(longs({4, 5, 6, 7, 8})))},
                          {.length = 2});
  ASSERT_EQ(both.size(), 3);
  EXPECT_TRUE(at::equal(both.get(1)["input"], longs({4, 5})));
  EXPECT_TRUE(at::equal(both.get(2)["target"], longs({7, 8})));
}

TEST_F(TextData, BadTokensAreErrors) {
  const auto path = put_tokens("a.bin", std::vector<uint16_t>{1, 2, 300, 4});
  const TokenDataset data(path, {.length = 2, .vocab_size = 256});
  EXPECT_THAT(error_of([&] { data.get(0); }), AllOf(HasSubstr("a.bin"), HasSubstr("token 300 at 2")));
  EXPECT_THAT(error_of([&] { TokenDataset(path, {.length = 4}); }), HasSubstr("do not fill one sample"));
  EXPECT_THAT(error_of([&] { TokenDataset(path, {.length = 2, .dtype = "int16"}); }), HasSubstr("did you mean"));
  EXPECT_THAT(error_of([&] { TokenDataset(put("odd.bin", "abc")); }), HasSubstr("no multiple of 2"));
  const auto npy = detail::write_npy(longs({1, 2, 3}));
  EXPECT_THAT(error_of([&] { TokenDataset(put("short.npy", npy.substr(0, npy.size() - 1)), {.length = 1}); }),
              HasSubstr("declares 3 tokens"));
  EXPECT_THAT(error_of([&] { TokenDataset(put("f.npy", detail::write_npy(at::ones({3}))), {.length = 1}); }),
              HasSubstr("f4"));
  // A file that shrinks while it is read is an error, not the end of the process.
  const TokenDataset shrinking(path, {.length = 3});
  fs::resize_file(path, 4);
  EXPECT_THAT(error_of([&] { shrinking.get(0); }), HasSubstr("too early"));
}

TEST_F(TextData, TextsAreBytesOrWhatAFunctionMakesOfThem) {
  const auto path = put("t.csv", "label,text\nb,hello\na,\"x, y\"\n");
  const TextDataset bytes(path);
  ASSERT_EQ(bytes.size(), 2);
  EXPECT_EQ(bytes.text(1), "x, y");
  EXPECT_TRUE(at::equal(bytes.get(0)["input"], longs({'h', 'e', 'l', 'l', 'o'})));
  EXPECT_EQ(bytes.get(0)["label"].item<int64_t>(), 1);
  EXPECT_EQ(bytes.classes().at(1), "b");
  const auto lengths = [](std::string_view text) { return std::vector<int64_t>(text.size(), 7); };
  const TextDataset padded(path, {.encode = lengths, .length = 4 + 1, .pad = -100});
  for (auto& batch : make_loader(padded, {.batch_size = 2})) {
    EXPECT_TRUE(at::equal(batch["input"][0], longs({7, 7, 7, 7, 7})));
    EXPECT_TRUE(at::equal(batch["input"][1], longs({7, 7, 7, 7, -100})));
    EXPECT_TRUE(at::equal(batch["length"], longs({5, 4})));
  }
  EXPECT_EQ(TextDataset(path, {.length = 2}).get(0)["length"].item<int64_t>(), 2);
  const TextDataset none(put("n.csv", "a\n1\nx\n"));
  EXPECT_THAT(error_of([&] { none.get(0); }), AllOf(HasSubstr("n.csv: row 2"), HasSubstr("no field \"text\"")));
}

TEST_F(TextData, TablesBecomeTensors) {
  const auto path = put("iris.csv", "length,width,name,class\n5.1,3,x,setosa\n4.9,,y,virginica\n");
  const auto data = load_table(path);
  EXPECT_EQ(data.size(), 2);
  EXPECT_FALSE(data.tensors().contains("name"));
  EXPECT_TRUE(at::equal(data.tensors()["label"], longs({0, 1})));
  EXPECT_TRUE(at::equal(data.tensors()["length"], at::tensor(std::vector<double>{5.1, 4.9})));
  EXPECT_TRUE(data.tensors()["width"][1].isnan().item<bool>());
  const auto stacked = load_table(path, {.columns = {"width", "length", "label"}, .stack = "input"});
  EXPECT_EQ(stacked.tensors()["input"].sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(stacked.tensors()["input"][0][0].item<float>(), 3.0f);
  EXPECT_EQ(stacked.tensors()["input"].scalar_type(), at::kFloat);
  const auto exact = load_table(path, {.columns = {"length"}, .stack = "input", .dtype = at::kDouble});
  EXPECT_EQ(exact.tensors()["input"][0][0].item<double>(), 5.1);
  EXPECT_EQ(stacked.tensors()["label"].scalar_type(), at::kLong);
  EXPECT_THAT(error_of([&] { load_table(path, {.columns = {"lenght"}}); }), HasSubstr("did you mean \"length\"?"));
  EXPECT_THAT(error_of([&] { load_table(put("w.csv", "a\nx\n")); }), HasSubstr("no column of numbers"));
}

}  // namespace
}  // namespace levin
