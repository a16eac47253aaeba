// Files of LibTorch's own torch::save: written by LibTorch here, read without it; and the way back.
#include <gmock/gmock.h>
#include <torch/jit.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/script.h>
#include <torch/serialize.h>

#include "levin/core/files.h"
#include "levin/io/weights/libtorch.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/weights.h"
#include "levin/io/weights/zip_file.h"
#include "levin/testing/tensors.h"
#include "tests/io/crafted.h"

namespace levin::libtorch_file_tests {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::same_bytes;
using testing::weight_fixture;
using torch::serialize::OutputArchive;
using namespace std::string_literals;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(3))),
        fc(register_module("fc", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)))),
        mask(register_buffer("mask", torch::arange(3, torch::kHalf))) {
    register_buffer("unused", Tensor());
  }
  Tensor forward(const Tensor& x) { return fc(norm(x)); }
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear fc;
  Tensor mask;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const std::string& name = "model")
      : layers(register_module(
            name, torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::Functional(torch::relu), Block()))),
        empty(register_module("empty", torch::nn::ReLU())) {}
  torch::nn::Sequential layers;
  torch::nn::ReLU empty;
};
TORCH_MODULE(Net);

/// All that torch::save writes of a module, by names.
std::map<std::string, Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, Tensor> all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) all.emplace(item.key(), item.value());
  return all;
}

class LibtorchFileTest : public testing::CraftedFiles {
 protected:
  std::string path(const char* name) const { return (root_ / name).string(); }
  static std::string refusal(const fs::path& path) {
    return error_of([&] { TorchFile opened(path); });
  }
  /// A TorchScript archive with that pickle and one storage, "0".
  fs::path crafted(const std::string& pickle, const std::string& code = "class Module(Module):\n") {
    const auto path = root_ / "crafted.pt";
    FileWriter writer(path);
    ZipWriter zip(writer);
    zip.add("x/data.pkl", pickle);
    zip.add("x/data/0", std::string(24, '\0'));
    zip.add("x/code/__torch__.py", code);
    zip.add("x/constants.pkl", "\x80\x02).");
    zip.finish();
    writer.close();
    return path;
  }
};

std::string word(const std::string& value) {
  std::string out = "X";
  const auto size = static_cast<uint32_t>(value.size());
  out.append(reinterpret_cast<const char*>(&size), 4);
  return out + value;
}

const std::string kTensor = "ctorch._utils\n_rebuild_tensor_v2\n((" + word("storage") + "ctorch\nFloatStorage\n" +
                            word("0") + word("cpu") + "K\x06tQ" + "K\0(K\x02K\x03t(K\x03K\x01t\x89"s +
                            "ccollections\nOrderedDict\n)RtR";

TEST_F(LibtorchFileTest, ReadsModules) {
  for (const char* child : {"model", "module", "state_dict"}) {
    Net net(child);
    torch::save(net, path("net.pt"));
    const WeightFile file(path("net.pt"));
    EXPECT_EQ(file.format(), "libtorch");
    EXPECT_EQ(file.root(), "");
    EXPECT_EQ(file.stripped(), "");
    const auto expected = tensors_of(*net);
    EXPECT_EQ(file.entries().size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bytes(file.read(name), tensor.detach())) << name;
  }
  EXPECT_EQ(TorchFile(path("net.pt")).kind(), TorchFileKind::libtorch);
}

TEST_F(LibtorchFileTest, ReadsWhatSharesMemory) {
  Net net;
  const auto weight = net->layers[0]->as<torch::nn::Linear>()->weight;
  net->register_parameter("tied", weight);
  net->register_buffer("rows", weight.detach().slice(0, 1, 3));
  torch::save(net, path("net.pt"));
  const TorchFile file(path("net.pt"));
  EXPECT_EQ(file.at("tied").storage, file.at("model.0.weight").storage);
  const auto together = file.read(std::vector<std::string>{"tied", "model.0.weight", "rows"});
  EXPECT_TRUE(together[0].second.is_alias_of(together[2].second));
  EXPECT_TRUE(together[2].second.equal(weight.detach().slice(0, 1, 3)));
}

TEST_F(LibtorchFileTest, ReadsTensorsAndLists) {
  torch::save(torch::arange(4), path("tensor.pt"));
  EXPECT_TRUE(TorchFile(path("tensor.pt")).read("0").equal(torch::arange(4)));
  torch::save(std::vector<Tensor>{torch::arange(4), torch::ones({2, 3}, torch::kBFloat16)}, path("tensors.pt"));
  EXPECT_TRUE(TorchFile(path("tensors.pt")).read("1").equal(torch::ones({2, 3}, torch::kBFloat16)));
  const auto bytes = torch::pickle_save(torch::arange(4));
  file("pickled.pt", {bytes.data(), bytes.size()});
  EXPECT_TRUE(TorchFile(path("pickled.pt")).read("tensor").equal(torch::arange(4)));
}

TEST_F(LibtorchFileTest, ReadsEveryDtype) {
  OutputArchive archive;
  std::map<std::string, Tensor> tensors;
  for (const auto& type : detail::torch_types()) {
    if (type.type == at::kComplexHalf) continue;
    tensors[type.name] = (torch::arange(6) % 2).to(at::kFloat).to(type.type);
    archive.write(type.name, tensors[type.name]);
  }
  archive.save_to(path("types.pt"));
  const TorchFile file(path("types.pt"));
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same_bytes(file.read(name), tensor)) << name;
}

TEST_F(LibtorchFileTest, ReadsArchivesThatAProgramFilled) {
  Net net;
  OutputArchive all, model, deep;
  net->save(model);
  all.write("net", model);
  all.write("epoch", c10::IValue(3));
  all.write("lr", c10::IValue(0.5));
  all.write("name", c10::IValue("first"));
  all.write("sizes", c10::IValue(std::vector<int64_t>{1, 300, 70000, int64_t{1} << 40}));
  all.write("rates", c10::IValue(std::vector<double>{0.5, 0.25}));
  all.write("flags", c10::IValue(std::vector<bool>{true, false}));
  all.write("list", c10::IValue(std::vector<Tensor>{torch::ones({2}), torch::zeros({2})}));
  c10::Dict<std::string, int64_t> counts;
  counts.insert("a", 2);
  all.write("counts", c10::IValue(counts));
  all.write("nothing", c10::IValue());
  all.write("best", torch::tensor(0.5), /*is_buffer=*/true);
  deep.write("odd name/with.all", torch::ones({1}));
  all.write("deep", deep);
  all.save_to(path("all.pt"));
  const TorchFile file(path("all.pt"));
  const auto& tree = file.tree();
  EXPECT_EQ(tree.find("epoch")->integer(), 3);
  EXPECT_EQ(tree.find("lr")->real(), 0.5);
  EXPECT_EQ(tree.find("sizes")->items()[3].integer(), int64_t{1} << 40);
  EXPECT_EQ(tree.find("rates")->items()[1].real(), 0.25);
  EXPECT_TRUE(tree.find("flags")->items()[0].boolean());
  EXPECT_EQ(tree.find("counts")->find("a")->integer(), 2);
  EXPECT_TRUE(tree.find("nothing")->is_none());
  EXPECT_TRUE(file.read("list.1").equal(torch::zeros({2})));
  EXPECT_TRUE(file.read("deep.odd name/with.all").equal(torch::ones({1})));
  EXPECT_EQ(file.metadata().at("name"), "first");
  // Two parts might be meant; one alone is the module.
  EXPECT_EQ(WeightFile(path("all.pt")).root(), "");
  EXPECT_EQ(WeightFile(path("all.pt"), {.root = "net"}).entries().size(), tensors_of(*net).size());
  OutputArchive some, model2;
  net->save(model2);
  some.write("net", model2);
  some.write("epoch", c10::IValue(3));
  some.save_to(path("some.pt"));
  EXPECT_EQ(WeightFile(path("some.pt")).root(), "net");
}

TEST_F(LibtorchFileTest, ReadsTheTensorsOfPrograms) {
  for (const char* name : {"script.pt", "traced.pt"}) {
    SCOPED_TRACE(name);
    const WeightFile file(weight_fixture(name));
    EXPECT_EQ(TorchFile(weight_fixture(name)).kind(), TorchFileKind::script);
    EXPECT_THAT(file.metadata().at("TorchScript"), HasSubstr("its code is neither read nor run"));
    const auto program = torch::jit::load(weight_fixture(name).string());
    size_t count = 0;
    for (const auto& item : program.named_parameters()) {
      ++count;
      EXPECT_TRUE(same_bytes(file.read(item.name), item.value.detach())) << item.name;
    }
    for (const auto& item : program.named_buffers()) {
      ++count;
      EXPECT_TRUE(same_bytes(file.read(item.name), item.value)) << item.name;
    }
    EXPECT_EQ(file.entries().size(), count);
  }
  EXPECT_THAT(refusal(weight_fixture("packed.pt")), HasSubstr("asks for torch._utils._rebuild_qtensor"));
}

TEST_F(LibtorchFileTest, HostileArchivesAreRefused) {
  const auto object = [](const std::string& type, const std::string& state) {
    return "c" + type + "\n)\x81" + state + "b";
  };
  const auto state = "}(" + word("w") + kTensor + "u";
  const auto of = [&](const std::string& body) { return refusal(crafted("\x80\x02" + body + ".")); };
  EXPECT_EQ(of(object("__torch__\nModule", state)), "no error");
  // Code is neither read nor run, whatever it is.
  EXPECT_EQ(refusal(crafted("\x80\x02" + object("__torch__\nModule", state) + ".", "import os\nos.system('true')\n")),
            "no error");
  EXPECT_THAT(of("cposix\nsystem\n" + word("true") + "\x85R"),
              HasSubstr("asks for posix.system, which is not allowed"));
  EXPECT_THAT(of(object("torch\nModule", state)), HasSubstr("asks for torch.Module"));
  EXPECT_THAT(of(object("__torch__x\nModule", state)), HasSubstr("asks for __torch__x.Module"));
  EXPECT_THAT(of("c__torch__\nModule\n" + word("a") + "\x85\x81}b"),
              HasSubstr("only objects without arguments are read"));
  EXPECT_THAT(of("c__torch__\nModule\n)R}b"), HasSubstr("REDUCE calls the class __torch__.Module"));
  EXPECT_THAT(of(object("__torch__\nModule", "K\x01")), HasSubstr("has an integer for its state"));
  EXPECT_THAT(of("c__torch__\nModule\n)\x81" + state + "b" + state + "b"), HasSubstr("the key \"w\" stands twice"));
  EXPECT_THAT(of("c__torch__\nModule\n)\x81q\0}("s + word("me") + "h\0ub"s), HasSubstr("contains itself"));
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "c__torch__\nModule\n)\x81}(" + word("a");
  deep += "K\x01";
  for (int i = 0; i < 200; ++i) deep += "ub";
  EXPECT_THAT(of(deep), HasSubstr("nested deeper than 100"));
  auto wrong = state;
  wrong.replace(wrong.find("K\x06t"), 3, "K\x07t");
  EXPECT_THAT(of(object("__torch__\nModule", wrong)), HasSubstr("is said to have 7 elements of 4 bytes"));
  // Without the constants it is a file of Python, which has no such classes.
  const auto path = root_ / "plain.pt";
  {
    FileWriter writer(path);
    ZipWriter zip(writer);
    zip.add("x/data.pkl", "\x80\x02" + object("__torch__\nModule", state) + ".");
    zip.add("x/data/0", std::string(24, '\0'));
    zip.finish();
    writer.close();
  }
  EXPECT_THAT(refusal(path), HasSubstr("asks for __torch__.Module, which is not allowed"));
}

TEST_F(LibtorchFileTest, EveryCutAndEveryChangedByteIsAnsweredInOneLine) {
  Net net;
  torch::save(net, path("net.pt"));
  const auto good = read_file(path("net.pt"));
  for (size_t size = 0; size < good.size(); size += good.size() / 64) {
    const auto answer = refusal(file("cut.pt", good.substr(0, size)));
    EXPECT_NE(answer, "no error") << size;
    EXPECT_EQ(answer.find('\n'), answer.npos);
  }
  const ZipFile zip(path("net.pt"), [](std::string_view name) { return name.ends_with("/data.pkl"); });
  const auto pickle = zip.read(zip.entries().at(0));
  const auto bytes_of = [](const std::string&, uint64_t elements, uint64_t width) { return elements * width; };
  for (size_t i = 0; i < pickle.size(); i += 3) {
    auto changed = pickle;
    changed[i] = static_cast<char>(changed[i] ^ 0x11);
    const auto answer = error_of([&] {
      detail::load_torch_pickle(std::as_bytes(std::span(changed)), bytes_of, "changed", nullptr, /*script=*/true);
    });
    EXPECT_EQ(answer.find('\n'), answer.npos);
  }
}

TEST_F(LibtorchFileTest, TorchLoadOpensWhatIsWritten) {
  Net net, again;
  const auto all = tensors_of(*net);
  NamedTensors tensors(all.begin(), all.end());
  write_libtorch_file(path("bare.pt"), tensors);
  EXPECT_THROW(torch::load(again, path("bare.pt")), c10::Error) << "it wants modules without tensors, too";
  torch::save(net, path("net.pt"));
  EXPECT_THAT(libtorch_modules(path("net.pt")), ::testing::Contains("empty"));
  write_libtorch_file(path("written.pt"), tensors, libtorch_modules(path("net.pt")));
  torch::load(again, path("written.pt"));
  for (const auto& [name, tensor] : tensors_of(*again)) EXPECT_TRUE(same_bytes(tensor.detach(), all.at(name).detach()));
  const auto module = torch::jit::load(path("written.pt"));
  // A weight file does not tell a floating-point buffer ("mask") from a parameter.
  EXPECT_EQ(module.named_parameters().size(), net->named_parameters().size() + 1);
  EXPECT_EQ(module.named_buffers().size(), 3u);
  EXPECT_EQ(WeightFile(path("written.pt")).format(), "libtorch");
}

TEST_F(LibtorchFileTest, WritesOneMemoryOnceAndNoMoreThanIsSeen) {
  const auto large = torch::rand({1000, 16}), row = large.select(0, 3);
  write_libtorch_file(path("tied.pt"), {{"a.w", large.slice(0, 0, 2)}, {"b.w", large.slice(0, 0, 2)}, {"row", row}});
  EXPECT_LT(fs::file_size(path("tied.pt")), 6000u);
  const TorchFile file(path("tied.pt"));
  EXPECT_EQ(file.at("a.w").storage, file.at("b.w").storage);
  EXPECT_TRUE(file.read("row").equal(row));
  EXPECT_THAT(error_of([&] {
                write_libtorch_file(path("x.pt"), {{"a", row}, {"a.b", row}});
              }),
              HasSubstr("\"a\" is a tensor and a module at once"));
  EXPECT_THAT(error_of([&] {
                write_libtorch_file(path("x.pt"), {{"a", row}, {"a", row}});
              }),
              HasSubstr("stands twice"));
  EXPECT_THAT(error_of([&] { write_libtorch_file(path("x.pt"), {{"a", Tensor()}}); }), HasSubstr("undefined"));
  EXPECT_FALSE(fs::exists(path("x.pt")));
}

}  // namespace
}  // namespace levin::libtorch_file_tests
