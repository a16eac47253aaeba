#include "levin/io/weights/torch_file.h"

#include <gmock/gmock.h>

#include "levin/core/files.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/zip_file.h"
#include "levin/testing/tensors.h"
#include "tests/io/crafted.h"

namespace levin::torch_file_tests {
namespace {

namespace fs = std::filesystem;
using pickle::Kind;
using testing::error_of;
using ::testing::HasSubstr;
using testing::same_bytes;
using testing::weight_fixture;
using namespace std::string_literals;

/// The same rule as in make_weight_fixtures.py.
Tensor expected(const detail::TorchType& type) {
  auto values = torch::arange(6);
  if (type.type == at::kBool) values = values % 2;
  return values.to(at::kFloat).to(type.type).reshape({2, 3});
}

class TorchFileTest : public testing::CraftedFiles {
 protected:
  static std::string refusal(const fs::path& path, const TorchFileOptions& options = {}) {
    return error_of([&] { TorchFile opened(path, options); });
  }
  /// An archive of torch with that pickle and one storage, "0".
  fs::path crafted(const std::string& pickle, const std::string& storage = std::string(24, '\0'),
                   const std::string& order = "little") {
    const auto path = root_ / "crafted.pt";
    FileWriter writer(path);
    ZipWriter zip(writer);
    zip.add("x/data.pkl", pickle);
    zip.add("x/byteorder", order);
    zip.add("x/data/0", storage);
    zip.finish();
    writer.close();
    return path;
  }
};

std::string text(const std::string& value) {
  std::string out = "X";
  const auto size = static_cast<uint32_t>(value.size());
  out.append(reinterpret_cast<const char*>(&size), 4);
  return out + value;
}

std::string integer(int64_t value) {
  std::string out = "\x8a\x08";
  out.append(reinterpret_cast<const char*>(&value), 8);
  return out;
}

std::string integers(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer(value);
  return out + "t";
}

struct Declared {
  std::string storage = "FloatStorage";
  std::string key = "0";
  int64_t elements = 6;
  int64_t offset = 0;
  std::vector<int64_t> size{2, 3}, stride{3, 1};
};

std::string tensor_pickle(const Declared& declared) {
  return "\x80\x02}(" + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" +
         declared.storage + "\n" + text(declared.key) + text("cpu") + integer(declared.elements) + "tQ" +
         integer(declared.offset) + integers(declared.size) + integers(declared.stride) + "\x89"s +
         "ccollections\nOrderedDict\n)RtRu.";
}

TEST_F(TorchFileTest, ReadsEveryType) {
  const TorchFile file(weight_fixture("all_types.pt"));
  EXPECT_EQ(file.entries().size(), 20u);
  for (const auto& type : detail::torch_types()) {
    if (type.type == at::kComplexHalf) continue;
    SCOPED_TRACE(type.name);
    EXPECT_EQ(file.at(type.name).dtype, type.type);
    EXPECT_TRUE(same_bytes(file.read(type.name), expected(type)));
    file.verify(file.at(type.name));
  }
  EXPECT_THAT(error_of([&] { file.read("flot32"); }), HasSubstr("has no tensor \"flot32\"; did you mean \"float32\"?"));
}

TEST_F(TorchFileTest, KeepsViewsAndSharedStorages) {
  const TorchFile file(weight_fixture("shared.pt"));
  const auto base = torch::arange(12, torch::kFloat);
  const std::map<std::string, Tensor> values{{"base", base},
                                             {"tied", base},
                                             {"transposed", base.view({3, 4}).t()},
                                             {"row", base.slice(0, 4, 8)},
                                             {"step", base.slice(0, 1, {}, 2)},
                                             {"scalar", torch::tensor(2.5f)},
                                             {"empty", torch::zeros({0, 4})},
                                             {"repeated", torch::ones({2, 3})}};
  const auto check = [&](const std::string& name, const Tensor& tensor) {
    SCOPED_TRACE(name);
    EXPECT_EQ(tensor.strides(), at::IntArrayRef(file.at(name).strides));
    ASSERT_EQ(tensor.sizes(), values.at(name).sizes());
    EXPECT_TRUE(tensor.equal(values.at(name)));
  };
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  for (const auto& name : names) check(name, file.read(name));
  std::map<std::string, Tensor> together;
  for (const auto& [name, tensor] : file.read(names)) {
    check(name, tensor);
    together[name] = tensor;
  }
  EXPECT_TRUE(together["base"].is_alias_of(together["row"]));
  EXPECT_EQ(together["base"].data_ptr(), together["tied"].data_ptr());
  EXPECT_FALSE(together["base"].is_alias_of(together["scalar"]));
}

TEST_F(TorchFileTest, ReadsLightningCheckpoints) {
  const TorchFile file(weight_fixture("lightning.ckpt"));
  EXPECT_TRUE(file.find("state_dict.net.weight"));
  EXPECT_TRUE(file.find("optimizer_states.0.state.0.exp_avg"));
  EXPECT_TRUE(file.read("parameter").equal(torch::arange(6, torch::kFloat).view({3, 2})));
  const auto& tree = file.tree();
  EXPECT_EQ(tree.find("epoch")->integer(), 3);
  EXPECT_EQ(tree.find("lr")->real(), 0.5);
  EXPECT_EQ(tree.find("big")->kind(), Kind::big_integer);
  EXPECT_EQ(tree.find("raw")->text(), "\x00\xff"s);
  EXPECT_EQ(tree.find("names")->items().size(), 2u);
  EXPECT_EQ(tree.find("size")->items()[1].integer(), 3);
  EXPECT_EQ(tree.find("dtype")->global(), "torch.bfloat16");
  EXPECT_EQ(tree.find("device")->text(), "cpu");
  EXPECT_EQ(tree.find("counts")->find("a")->integer(), 2);
  const TorchFile part(weight_fixture("lightning.ckpt"), {.root = "state_dict"});
  ASSERT_EQ(part.entries().size(), 2u);
  EXPECT_TRUE(part.read("net.bias").equal(torch::arange(3, torch::kFloat)));
  EXPECT_THAT(refusal(weight_fixture("lightning.ckpt"), {.root = "state_dct"}),
              HasSubstr("root \"state_dct\" is not known; did you mean \"state_dict\"?"));
  EXPECT_TRUE(TorchFile(weight_fixture("bare.pt")).read("tensor").equal(torch::arange(3)));
}

TEST_F(TorchFileTest, TurnsBigEndianAround) {
  EXPECT_TRUE(
      TorchFile(weight_fixture("big_endian.pt")).read("weight").equal(torch::arange(6, torch::kFloat).view({3, 2})));
}

TEST_F(TorchFileTest, SaysWhatItDoesNotRead) {
  EXPECT_THAT(refusal(weight_fixture("sparse.pt")), HasSubstr("asks for torch._utils._rebuild_sparse_tensor"));
  EXPECT_THAT(refusal(weight_fixture("quantized.pt")), HasSubstr("which is not allowed; tensors and plain values are"));
  EXPECT_THAT(refusal(weight_fixture("module.pt")), HasSubstr("asks for torch.nn.modules.linear.Linear"));
  EXPECT_THAT(refusal(weight_fixture("deflated.pt")), HasSubstr("is compressed (method 8)"));
  EXPECT_THAT(refusal(weight_fixture("system.pkl")), HasSubstr("is no file of torch.save"));
  EXPECT_THAT(refusal(root_ / "missing.pt"), HasSubstr("missing.pt"));
  EXPECT_THAT(refusal(crafted("\x80\x02"s
                              "cposix\nsystem\n"s +
                              text("true") + "\x85R.")),
              HasSubstr("asks for posix.system"));
}

TEST_F(TorchFileTest, ChecksTensorsAgainstTheirStorages) {
  EXPECT_EQ(refusal(crafted(tensor_pickle({}))), "no error");
  const auto expect = [&](const Declared& declared, const std::string& why) {
    EXPECT_THAT(refusal(crafted(tensor_pickle(declared))), HasSubstr(why));
  };
  constexpr auto kHuge = std::numeric_limits<int64_t>::max();
  expect({.elements = 7}, "is said to have 7 elements of 4 bytes; its record has 24 bytes");
  expect({.elements = -1}, "is said to have -1 elements");
  expect({.elements = kHuge}, "is said to have");
  expect({.elements = int64_t{1} << 62}, "is said to have");
  expect({.storage = "DoubleStorage"}, "is said to have 6 elements of 8 bytes");
  expect({.storage = "QInt8Storage"}, "asks for torch.QInt8Storage");
  expect({.key = "1"}, "storage \"1\" is not in the archive");
  expect({.key = "../data.pkl"}, "is not in the archive");
  expect({.offset = 1}, "reaches element 6 of storage \"0\", which has 6");
  expect({.offset = -1}, "from element -1 on");
  expect({.offset = kHuge}, "overflows");
  expect({.size = {3, 3}}, "reaches element 8");
  expect({.size = {-1, 3}}, "a tensor of size -1");
  expect({.stride = {-3, 1}}, "a tensor of stride -3");
  expect({.stride = {4, 1}}, "reaches element 6");
  expect({.size = {2}}, "of 1 sizes and 2 strides");
  expect({.size = {kHuge, 2}, .stride = {0, 0}}, "overflows");
  expect({.size = {2, 2}, .stride = {kHuge, kHuge}}, "overflows");
  expect({.size = {int64_t{1} << 32, int64_t{1} << 32}, .stride = {int64_t{1} << 32, 1}}, "overflows");
  expect({.size = {int64_t{1} << 40}, .stride = {0}}, "repeats a storage of 6");
  expect({.size = std::vector<int64_t>(65, 1), .stride = std::vector<int64_t>(65, 1)}, "not a tuple of at most 64");
  EXPECT_EQ(refusal(crafted(tensor_pickle({.offset = 6, .size = {0, 3}}))), "no error");
  expect({.offset = 7, .size = {0, 3}}, "reaches element");
  EXPECT_THAT(refusal(crafted(tensor_pickle({}), std::string(24, '\0'), "middle")),
              HasSubstr("the byte order \"middle\""));
  const auto bools = crafted(tensor_pickle({.storage = "BoolStorage"}), std::string(6, '\2'));
  EXPECT_THAT(error_of([&] { TorchFile(bools).read("w"); }), HasSubstr("is of bools and has a byte 2"));
}

TEST_F(TorchFileTest, NamesMustBeOneOfAKind) {
  const auto one = tensor_pickle({});
  const auto item = one.substr(one.find("ctorch._utils"), one.rfind("u.") - one.find("ctorch._utils"));
  const auto twice = "\x80\x02}(" + text("a.b") + item + text("a") + "}(" + text("b") + item + "uu.";
  EXPECT_THAT(refusal(crafted(twice)), HasSubstr("two tensors are named \"a.b\""));
  auto deep = item;
  for (int i = 0; i < 5; ++i) deep = "}(" + text(std::string(1000, 'n')) + deep + "u";
  EXPECT_THAT(refusal(crafted("\x80\x02" + deep + ".")), HasSubstr("a name of"));
}

TEST_F(TorchFileTest, EveryChangedByteOfAPickleIsAnsweredInOneLine) {
  const auto good = tensor_pickle({});
  const auto read = [&](const std::string& body) {
    const auto bytes_of = [](const std::string& key, uint64_t, uint64_t) -> uint64_t {
      LEVIN_CHECK(key == "0", "[pickle] there is no such storage");
      return 24;
    };
    return error_of([&] { detail::load_torch_pickle(std::as_bytes(std::span(body)), bytes_of, "changed"); });
  };
  ASSERT_EQ(read(good), "no error");
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int change : {1, 0x80, 0xff}) {
      auto changed = good;
      changed[i] = static_cast<char>(changed[i] ^ change);
      read(changed);
    }
    EXPECT_NE(read(good.substr(0, i)), "no error");
  }
}

TEST_F(TorchFileTest, ReadsBackWhatItWrites) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& type : detail::torch_types())
    if (type.type != at::kComplexHalf) tensors.emplace_back(type.name, expected(type));
  // The order of make_weight_fixtures.py, which compares the file.
  const TorchFile original(weight_fixture("all_types.pt"));
  std::vector<std::pair<std::string, Tensor>> sorted;
  for (const auto& entry : original.entries())
    sorted.push_back(
        *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == entry.name; }));
  const auto path = root_ / "written_types.pth";
  write_torch_file(path, sorted);
  const TorchFile file(path);
  ASSERT_EQ(file.entries().size(), sorted.size());
  for (const auto& [name, tensor] : sorted) EXPECT_TRUE(same_bytes(file.read(name), tensor)) << name;
  EXPECT_THAT(error_of([&] {
                write_torch_file(path, {{"a", torch::ones(1)}, {"a", torch::ones(1)}});
              }),
              HasSubstr("two tensors named \"a\""));
  EXPECT_EQ(TorchFile(path).entries().size(), sorted.size()) << "the file stays as it was";
  EXPECT_THAT(error_of([&] { write_torch_file(path, {{"a", Tensor()}}); }), HasSubstr("undefined"));
}

TEST_F(TorchFileTest, WritesTreesAndSharesMemory) {
  const auto whole = torch::arange(12, torch::kFloat).view({3, 4});
  StateDict nested{{"flag", true},        {"number", -5}, {"wide", int64_t{1} << 40},
                   {"real", 0.1},         {"text", "ü"},  {"list", StateList{1, 2}},
                   {"none", StateValue()}};
  const auto path = root_ / "written_tree.pth";
  write_torch_tree(path, StateDict{{"whole", whole},
                                   {"column", whole.select(1, 1)},
                                   {"tied", whole},
                                   {"nested", nested},
                                   {"part", torch::arange(100, torch::kFloat).slice(0, 10, 12)}});
  const TorchFile file(path);
  EXPECT_EQ(file.at("column").storage, file.at("whole").storage);
  EXPECT_EQ(file.at("column").strides, (std::vector<int64_t>{4}));
  EXPECT_TRUE(file.read("column").equal(whole.select(1, 1)));
  EXPECT_TRUE(file.read("part").equal(torch::tensor({10.f, 11.f})));
  EXPECT_LT(fs::file_size(path), 3000u) << "a slice does not bring along what it was cut from";
  EXPECT_EQ(file.tree().find("nested")->find("wide")->integer(), int64_t{1} << 40);
  EXPECT_EQ(file.tree().find("nested")->find("text")->text(), "ü");
}

}  // namespace
}  // namespace levin::torch_file_tests
