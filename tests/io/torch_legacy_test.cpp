// Files of torch.save from before 1.6, and what training scripts put into a file beside the weights.
#include <gmock/gmock.h>

#include "levin/core/files.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/weights.h"
#include "tests/io/crafted.h"

namespace levin::torch_legacy_tests {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::weight_fixture;
using namespace std::string_literals;

class TorchLegacy : public testing::CraftedFiles {
 protected:
  static std::string refusal(const fs::path& path) {
    return error_of([&] {
      const TorchFile opened(path);
      for (const auto& entry : opened.entries()) (void)opened.read(entry.name);
    });
  }
};

TEST_F(TorchLegacy, ReadsEveryType) {
  const TorchFile file(weight_fixture("legacy.pt"));
  const TorchFile zip(weight_fixture("all_types.pt"));
  ASSERT_EQ(file.entries().size(), zip.entries().size());
  for (size_t i = 0; i < file.entries().size(); ++i) {
    const auto& entry = file.entries()[i];
    EXPECT_EQ(entry.name, zip.entries()[i].name);
    const auto read = file.read(entry.name), expected = zip.read(entry.name);
    EXPECT_EQ(read.scalar_type(), expected.scalar_type());
    EXPECT_EQ(std::memcmp(read.contiguous().data_ptr(), expected.contiguous().data_ptr(), read.nbytes()), 0);
  }
  file.verify(file.entries()[0]);
}

TEST_F(TorchLegacy, SharesWhatTheFileShares) {
  for (const char* name : {"legacy_shared.pth", "legacy_protocol4.pth"}) {
    const TorchFile file(weight_fixture(name));
    const auto base = torch::arange(12, torch::kFloat);
    std::map<std::string, Tensor> read;
    std::vector<std::string> names;
    for (const auto& entry : file.entries()) names.push_back(entry.name);
    for (auto& [each, tensor] : file.read(names)) read[each] = tensor;
    EXPECT_TRUE(read.at("transposed").equal(base.view({3, 4}).t()));
    EXPECT_TRUE(read.at("row").equal(base.view({3, 4})[1]));
    EXPECT_EQ(read.at("tied").data_ptr(), read.at("base").data_ptr());
    EXPECT_EQ(read.at("scalar").item<float>(), 2.5F);
    EXPECT_EQ(read.at("empty").sizes(), (std::vector<int64_t>{0, 4}));
    EXPECT_TRUE(read.at("half").equal(torch::arange(4).to(torch::kHalf)));
    EXPECT_TRUE(file.read("other").equal(torch::arange(3)));
  }
}

TEST_F(TorchLegacy, ReadsWhatPython2Wrote) {
  const TorchFile file(weight_fixture("legacy_python2.pth"));
  EXPECT_TRUE(file.read("weight").equal(torch::arange(6, torch::kFloat).view({3, 2})));
}

TEST_F(TorchLegacy, RefusesEveryTruncation) {
  for (const char* name : {"legacy_shared.pth", "reference_legacy.pth", "legacy_python2.pth"}) {
    const auto whole = read_file(weight_fixture(name));
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_NE(refusal(file("cut.pth", std::string_view(whole).substr(0, size))), "no error") << name << " " << size;
    EXPECT_THAT(refusal(file("long.pth", whole + "x")), HasSubstr("1 bytes after its end"));
  }
}

TEST_F(TorchLegacy, AnyByteThatDiffersIsReadOrOneLine) {
  for (const char* name : {"legacy_shared.pth", "legacy_python2.pth"}) {
    const auto whole = read_file(weight_fixture(name));
    for (size_t at = 0; at < whole.size(); ++at)
      for (const unsigned char value : {0x00, 0xff, static_cast<int>(static_cast<unsigned char>(whole[at]) ^ 0x01)}) {
        auto changed = whole;
        changed[at] = static_cast<char>(value);
        (void)refusal(file("changed.pth", changed));  // error_of fails the test for anything but one line
      }
  }
}

TEST_F(TorchLegacy, RefusesHostileFiles) {
  const auto whole = read_file(weight_fixture("legacy_python2.pth"));
  const auto with = [&](const std::string& from, const std::string& to) {
    auto changed = whole;
    const auto at = changed.find(from);
    EXPECT_NE(at, std::string::npos);
    changed.replace(at, from.size(), to);
    return file("hostile.pth", changed);
  };
  EXPECT_THAT(refusal(with("ctorch._utils\n_rebuild_tensor\n", "cposix\nsystem\n")),
              HasSubstr("asks for posix.system"));
  EXPECT_THAT(refusal(with("U\x07storage", "U\x06module")),
              HasSubstr("holds a whole module; torch.save its state_dict"));
  EXPECT_THAT(refusal(with("K\x06NtQ", "J\xff\xff\xff\x7fNtQ")), HasSubstr("the file has"));
  EXPECT_THAT(refusal(with("K\x06NtQ", "K\x05NtQ")), HasSubstr("reaches element 5"));
  // A view of the storage: two elements of the six.
  EXPECT_THAT(refusal(with("K\x06NtQ", "K\x06(U\x01"s + "1K\x04K\x02ttQ")), HasSubstr("reaches element 9"));
  EXPECT_THAT(refusal(with("K\x06NtQ", "K\x06(U\x01"s + "1K\x04K\x04ttQ")),
              HasSubstr("a view of 4 elements from 4 on"));
  EXPECT_EQ(refusal(with("K\x06NtQ", "K\x06(U\x01"s + "1K\0K\x06ttQ"s)), "no error");
  EXPECT_THAT(refusal(with("]U\x02"
                           "94a.",
                           "]U\x02"
                           "95a.")),
              HasSubstr("no tensor is of it"));
  EXPECT_THAT(refusal(with("]U\x02"
                           "94a.",
                           "].")),
              HasSubstr("it has no storage \"94\""));
  EXPECT_THAT(refusal(with("\xe9\x03.", "\xe8\x03.")), HasSubstr("format version that is not known; 1001 is"));
  EXPECT_THAT(refusal(weight_fixture("oldest.pth")), HasSubstr("is a tar of torch before 0.1.10"));
  EXPECT_TRUE(is_torch_file(weight_fixture("oldest.pth")));
}

TEST_F(TorchLegacy, ANamespaceIsPartOfTheMetadata) {
  for (const char* name : {"reference.pth", "reference_legacy.pth"}) {
    const WeightFile file(weight_fixture(name));
    EXPECT_EQ(file.root(), "model");
    ASSERT_EQ(file.entries().size(), 2U);
    EXPECT_TRUE(file.read("weight").equal(torch::arange(6, torch::kFloat).view({3, 2})));
    EXPECT_EQ(file.metadata().at("epoch"), "3");
    EXPECT_EQ(file.metadata().at("args.lr"), "0.1");
    EXPECT_EQ(file.metadata().at("args.model"), "linear");
    EXPECT_EQ(file.metadata().at("args.amp"), "false");
    EXPECT_EQ(file.metadata().at("args.resume"), "None");
    EXPECT_EQ(file.metadata().at("args.output_dir"), "out/run");
    // The rest is there too, for those who ask.
    const TorchFile all(weight_fixture(name));
    EXPECT_TRUE(all.find("optimizer.state.0.momentum_buffer"));
  }
}

TEST_F(TorchLegacy, TakesTheWrapperFromNames) {
  for (const char* name : {"wrapped.pth.tar", "wrapped_legacy.pth"}) {
    const WeightFile file(weight_fixture(name));
    ASSERT_EQ(file.entries().size(), 2U) << name;
    EXPECT_EQ(file.entries()[0].name, "weight");
    EXPECT_EQ(file.stripped(), "module.");
    EXPECT_TRUE(file.read("bias").equal(torch::arange(3, torch::kFloat)));
    const auto both = file.read(std::vector<std::string>{"bias", "weight"});
    EXPECT_EQ(both[0].first, "bias");
    EXPECT_EQ(both[1].second.sizes(), (std::vector<int64_t>{3, 2}));
    // All of the file, as it is.
    const WeightFile plain(weight_fixture(name), {.strip_module = false});
    EXPECT_EQ(plain.entries()[0].name, "module.weight");
    EXPECT_EQ(plain.stripped(), "");
  }
  const WeightFile raw(weight_fixture("wrapped.pth.tar"), {.root = ""});
  EXPECT_TRUE(raw.contains("state_dict.module.weight"));
  // A number beside the weights does not hide them.
  const WeightFile engine(weight_fixture("engine.pt"));
  EXPECT_EQ(engine.root(), "module");
  EXPECT_EQ(engine.entries().size(), 2U);
}

TEST_F(TorchLegacy, GivesTiedNamesBackThatSafetensorsLeftOut) {
  const WeightFile file(weight_fixture("save_model.safetensors"));
  ASSERT_EQ(file.entries().size(), 2U);
  const auto both = file.read(std::vector<std::string>{"0.weight", "1.weight"});
  EXPECT_EQ(both[0].second.data_ptr(), both[1].second.data_ptr());
  EXPECT_TRUE(file.read("1.weight").equal(torch::arange(4, torch::kFloat).view({2, 2})));
}

}  // namespace
}  // namespace levin::torch_legacy_tests
