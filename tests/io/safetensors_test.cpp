#include "levin/io/weights/safetensors.h"

#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/io/weights/safetensors_model.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/tensors.h"
#include "tests/io/crafted.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using testing::same_bytes;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/io/fixtures";

class SafetensorsTest : public testing::CraftedFiles {
 protected:
  /// A file with that header and data.
  fs::path file(const std::string& header, const std::string& data = "", std::optional<uint64_t> length = {}) {
    const auto path = root_ / "crafted.safetensors";
    const uint64_t n = length.value_or(header.size());
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&n), 8);
    out << header << data;
    return path;
  }
  std::string error(const fs::path& path) {
    return error_of([&] { SafetensorsFile opened(path); });
  }
  void expect_refused(const std::string& header, const std::string& data, const std::string& why) {
    const auto line = error(file(header, data));
    EXPECT_NE(line.find(why), std::string::npos) << header << "\n  " << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
};

std::vector<std::pair<std::string, c10::ScalarType>> types() {
  return {{"float64", at::kDouble},
          {"float32", at::kFloat},
          {"float16", at::kHalf},
          {"bfloat16", at::kBFloat16},
          {"int64", at::kLong},
          {"int32", at::kInt},
          {"int16", at::kShort},
          {"int8", at::kChar},
          {"uint8", at::kByte},
          {"bool", at::kBool},
          {"uint16", at::kUInt16},
          {"uint32", at::kUInt32},
          {"uint64", at::kUInt64},
          {"complex64", at::kComplexFloat},
          {"float8_e4m3fn", at::kFloat8_e4m3fn},
          {"float8_e5m2", at::kFloat8_e5m2},
          {"float8_e8m0fnu", at::kFloat8_e8m0fnu},
          {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
          {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz}};
}

/// What make_fixtures.py makes.
NamedTensors expected_tensors() {
  NamedTensors tensors;
  for (const auto& [name, type] : types()) {
    const auto values = type == at::kBool ? torch::arange(6) % 2 : torch::arange(6);
    tensors.emplace_back(name, values.to(at::kFloat).to(type).reshape({2, 3}));
  }
  tensors.emplace_back("scalar", torch::tensor(2.5F));
  tensors.emplace_back("empty", torch::zeros({0, 4}));
  tensors.emplace_back("ünï/cödé \"quoted\"\n", torch::ones({1}));
  return tensors;
}

TEST_F(SafetensorsTest, ReadsWhatTheReferenceWrote) {
  const SafetensorsFile file(kFixtures / "all_types.safetensors");
  const auto expected = expected_tensors();
  EXPECT_EQ(file.entries().size(), expected.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bytes(file.read(name), tensor)) << name;
}

TEST_F(SafetensorsTest, WritesTheBytesOfTheReference) {
  const auto path = root_ / "all_types.safetensors";
  write_safetensors(path, expected_tensors(), {{"format", "pt"}});
  EXPECT_EQ(read_file(path), read_file(kFixtures / "all_types.safetensors"));
}

TEST_F(SafetensorsTest, WritesAnyStridesAndConjugates) {
  const auto path = root_ / "strided.safetensors";
  const auto base = torch::arange(12.0).reshape({3, 4});
  const auto z = torch::complex(torch::ones({2}), torch::ones({2}));
  FileWriter writer(path);
  const auto records = write_safetensors(writer, {{"t", base.t()},
                                                  {"expanded", base.slice(0, 0, 1).expand({2, 4})},
                                                  {"conj", z.conj()},
                                                  {"grad", torch::ones({2}, torch::requires_grad())}});
  writer.close();
  const SafetensorsFile file(path);
  EXPECT_TRUE(torch::equal(file.read("t"), base.t()));
  EXPECT_TRUE(torch::equal(file.read("expanded"), base.slice(0, 0, 1).expand({2, 4})));
  EXPECT_TRUE(torch::equal(file.read("conj"), z.conj().resolve_conj()));
  EXPECT_FALSE(file.read("grad").requires_grad());
  for (const auto& record : records) EXPECT_EQ(file.checksum(file.at(record.name)), record.checksum) << record.name;
}

TEST_F(SafetensorsTest, RefusesToWriteWhatItCannotHold) {
  const auto path = root_ / "bad.safetensors";
  EXPECT_THROW(write_safetensors(path, {{"a", Tensor()}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", torch::ones({2}).to(at::kComplexDouble)}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", torch::ones({2}).to_sparse()}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", torch::ones({2})}, {"a", torch::ones({2}, at::kInt)}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", torch::ones({2})}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"\xff", torch::ones({2})}}), Error);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SafetensorsTest, UnknownNameTellsTheNearest) {
  const SafetensorsFile file(kFixtures / "all_types.safetensors");
  EXPECT_NE(error_of([&] { (void)file.read("flaot32"); }).find("did you mean \"float32\"?"), std::string::npos);
}

TEST_F(SafetensorsTest, AcceptsWhatIsLegal) {
  const std::string entry = R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})";
  for (const std::string& header : {std::string("{}"), std::string(" {} \n"), std::string(R"({"__metadata__":{}})"),
                                    std::string(R"({"__metadata__":null})")})
    EXPECT_EQ(error(file(header)), "no error") << header;
  EXPECT_EQ(error(file(R"({"a\u0000/b":)" + entry + "}", "0000")), "no error");
  EXPECT_EQ(error(file(R"({"":)" + entry + "}", "0000")), "no error");
  EXPECT_EQ(error(file(R"({"z":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "000")), "no error");
  EXPECT_THROW(SafetensorsFile(file(R"({"z":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "000")).read("z"),
               Error);
}

TEST_F(SafetensorsTest, RefusesMalformedFiles) {
  const auto path = root_ / "short.safetensors";
  write_file(path, "");
  EXPECT_NE(error(path).find("has 0 bytes"), std::string::npos);
  write_file(path, "1234567");
  EXPECT_NE(error(path).find("has 7 bytes"), std::string::npos);
  EXPECT_NE(error(file("", "")).find("must be a JSON object"), std::string::npos);
  EXPECT_NE(error(file("{}", "", 3)).find("truncated"), std::string::npos);
  EXPECT_NE(error(file("{}", "", 100'000'001)).find("at most 100000000"), std::string::npos);
  for (const uint64_t huge : {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7})
    EXPECT_NE(error(file("{}", "", huge)).find("at most"), std::string::npos);

  expect_refused("{", "", "not JSON");
  expect_refused("{}x", "", "not JSON");
  expect_refused("[]", "", "must be a JSON object");
  expect_refused("\xef\xbb\xbf{}", "", "must be a JSON object");
  expect_refused("{\"\xff\":1}", "", "not JSON in UTF-8");
  expect_refused(R"({"a":1})", "", "stands in \"a\"");
  expect_refused(R"({"a":[]})", "", "an array");
  expect_refused(R"({"a":null})", "", "null");
  expect_refused(R"({"a":{}})", "", "lacks one of");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1]}})", "0000", "lacks one of");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "0000", "lacks one of");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "0000", "the number 8");
  expect_refused(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "0000", "an array");
  expect_refused(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", "0000", "the number 3");
  expect_refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "0000", "twice");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":{}}})", "0000", "\"more\"");
  expect_refused(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "0000", "did you mean \"F32\"?");
  expect_refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "0000", "-1");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "0000", "1.0");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1e20],"data_offsets":[0,4]}})", "0000", "1e20");
  expect_refused(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", "0000", "shape");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2,18446744073709551614],"data_offsets":[0,4]}})", "0000", "shape");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "",
                 "cannot be counted");
  expect_refused(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})",
                 "", "cannot be counted");
  expect_refused(R"({"a":{"dtype":"F6_E2M3","shape":[1],"data_offsets":[0,1]}})", "0", "cannot be counted");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "0000", "offsets are 4 to 0");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})", "00000", "needs 4 bytes");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "00", "truncated");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "000000",
                 "2 bytes after the last tensor");
  expect_refused("{}", "x", "1 bytes after the last tensor");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "00000000", "a hole of 4 bytes");
  expect_refused(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      "00000000", "overlaps");
  expect_refused(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      "0000", "stands twice");
  expect_refused(R"({"__metadata__":{"a":1}})", "", "strings to strings");
  expect_refused(R"({"__metadata__":{"a":{}}})", "", "strings to strings");
  expect_refused(R"({"__metadata__":[]})", "", "strings to strings");
  expect_refused(R"({"__metadata__":{"a":"1","a":"2"}})", "", "stands twice");
  // Depth alone must not use up memory or the stack.
  expect_refused(std::string(1'000'000, '['), "", "must be a JSON object");
  expect_refused(R"({"a":)" + std::string(1'000'000, '['), "", "an array");
  std::string dimensions = "1";
  for (int i = 0; i < 64; ++i) dimensions += ",1";
  expect_refused(R"({"a":{"dtype":"U8","shape":[)" + dimensions + R"(],"data_offsets":[0,1]}})", "0",
                 "more than 64 dimensions");
}

TEST_F(SafetensorsTest, RefusesBoolsThatAreNone) {
  const SafetensorsFile opened(file(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02"));
  EXPECT_THROW(opened.read("a"), Error);
}

TEST_F(SafetensorsTest, SurvivesRandomDamage) {
  const auto good = read_file(kFixtures / "all_types.safetensors");
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    auto bad = good;
    for (unsigned k = 0; k < 1 + random() % 3; ++k) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    {
      std::ofstream out(root_ / "damaged", std::ios::binary);
      out << bad;
    }
    try {
      const SafetensorsFile file(root_ / "damaged");
      for (const auto& entry : file.entries()) file.read(entry.name);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(SafetensorsTest, ReadsAndWritesShards) {
  const SafetensorsModel fixture(kFixtures / "sharded");
  EXPECT_EQ(fixture.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(torch::equal(fixture.read("b"), torch::arange(4.0)));

  NamedTensors tensors;
  for (int i = 0; i < 10; ++i) tensors.emplace_back(fmt::format("layer.{}", i), torch::full({10}, i));
  write_safetensors_model(root_ / "sharded", tensors, 100);
  const SafetensorsModel written(root_ / "sharded");
  EXPECT_EQ(written.files().size(), 10U);  // 80 bytes each: two do not fit
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(written.read(name), tensor)) << name;
  write_safetensors_model(root_ / "single", tensors);
  EXPECT_EQ(SafetensorsModel(root_ / "single").names().size(), 10U);
  EXPECT_THROW(written.read("layer.11"), Error);
}

TEST_F(SafetensorsTest, AnIndexCannotLeaveItsFolder) {
  const auto folder = root_ / "escape";
  fs::create_directories(folder);
  fs::copy(kFixtures / "sharded", folder, fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  fs::copy_file(kFixtures / "sharded/model-00001-of-00002.safetensors", root_ / "outside.safetensors",
                fs::copy_options::overwrite_existing);
  const auto refused = [&](const std::string& map) {
    write_file(folder / "model.safetensors.index.json", R"({"weight_map":)" + map + "}");
    return error_of([&] { SafetensorsModel model(folder); });
  };
  const std::string a = R"("a":"model-00001-of-00002.safetensors")";
  for (const std::string place :
       {"../outside.safetensors", "/etc/passwd", "..", ".", "", "sub/x", "..\\\\x", "a\\u0000b"})
    EXPECT_NE(refused(R"({"a":")" + place + "\"}").find("only names of files beside"), std::string::npos) << place;
  EXPECT_NE(refused(R"({"a":3})").find("only names of files beside"), std::string::npos);
  EXPECT_NE(refused(R"({"a":"gone.safetensors"})").find("No such file"), std::string::npos);
  EXPECT_NE(refused("{" + a + R"(,"c":"model-00002-of-00002.safetensors"})").find("it is not"), std::string::npos);
  EXPECT_NE(refused("[]").find("is not an index"), std::string::npos);
  EXPECT_EQ(refused("{" + a + R"(,"b":"model-00002-of-00002.safetensors"})"), "no error");
  write_safetensors(folder / "twice.safetensors", {{"a", torch::ones({1})}, {"b", torch::ones({1})}});
  EXPECT_NE(refused("{" + a + R"(,"b":"twice.safetensors"})").find("in two files"), std::string::npos);
}

}  // namespace
}  // namespace levin
