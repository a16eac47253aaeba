#include "levin/io/weights/pickle.h"

#include <gmock/gmock.h>

#include "levin/core/files.h"
#include "levin/io/weights/numpy_pickle.h"
#include "tests/io/crafted.h"

namespace levin::pickle_tests {
namespace {

using pickle::Kind;
using pickle::Value;
using testing::error_of;
using ::testing::HasSubstr;
using testing::weight_fixture;
using namespace std::string_literals;

Value load(const std::string& body, pickle::Limits limits = {}) {
  return pickle::load(std::as_bytes(std::span(body)), {.globals = pickle::basic_globals(), .limits = limits}, "x.pkl");
}

std::string refusal(const std::string& body, pickle::Limits limits = {}) {
  return error_of([&] { load(body, limits); });
}

TEST(Pickle, BuildsPlainValues) {
  const auto value = load(
      "\x80\x02}(X\x01\x00\x00\x00"s
      "aK\x07X\x01\x00\x00\x00"s
      "bG\x3f\xe0\x00\x00\x00\x00\x00\x00"s
      "X\x01\x00\x00\x00"s
      "c](\x88\x89NM\x00\x01J\xff\xff\xff\xff"s
      "eX\x01\x00\x00\x00"s
      "dK\x01K\x02\x86u."s);
  ASSERT_TRUE(value.is(Kind::dict));
  EXPECT_EQ(value.pairs().size(), 4u);
  EXPECT_EQ(value.find("a")->integer(), 7);
  EXPECT_EQ(value.find("b")->real(), 0.5);
  const auto list = value.find("c")->items();
  EXPECT_TRUE(list[0].boolean());
  EXPECT_FALSE(list[1].boolean());
  EXPECT_TRUE(list[2].is_none());
  EXPECT_EQ(list[3].integer(), 256);
  EXPECT_EQ(list[4].integer(), -1);
  EXPECT_TRUE(value.find("d")->is(Kind::tuple));
  EXPECT_EQ(value.find("e"), nullptr);
}

TEST(Pickle, Integers) {
  const auto integer = [](const std::string& bytes) {
    return load("\x80\x02\x8a"s + static_cast<char>(bytes.size()) + bytes + ".");
  };
  EXPECT_EQ(integer("").integer(), 0);
  EXPECT_EQ(integer("\xff"s).integer(), -1);
  EXPECT_EQ(integer("\xff\x00"s).integer(), 255);
  EXPECT_EQ(integer("\x00\x00\x00\x00\x00\x00\x00\x80"s).integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(integer("\xff\xff\xff\xff\xff\xff\xff\xff\x00"s).kind(), Kind::big_integer);
  EXPECT_EQ(integer("\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00"s).integer(), 5);
}

TEST(Pickle, NamesOutsideTheTableAreRefusedBeforeAnythingIsCalled) {
  const std::string posix =
      "\x80\x02"s
      "cposix\nsystem\nX\x04\x00\x00\x00"s
      "true\x85R."s;
  EXPECT_THAT(refusal(posix), HasSubstr("\"x.pkl\": asks for posix.system, which is not allowed (at byte 2)"));
  EXPECT_THAT(refusal("\x80\x04\x8c\x08"s
                      "builtins\x8c\x04"s
                      "eval\x93."s),
              HasSubstr("asks for builtins.eval"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "cevil\nname\nwith\x1b\n."s),
              HasSubstr("asks for evil.name, which"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "ce\x1b\x7f\nx\n."s),
              HasSubstr("asks for e??.x"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "cbuiltins\nlist\n)R."s),
              HasSubstr("builtins.list, which may be named, not called"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "X\x01\x00\x00\x00"s
                      "a)R."s),
              HasSubstr("REDUCE calls a string"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "](K\x01"s
                      "e}b."s),
              HasSubstr("BUILD gives a list a state"));
  EXPECT_THAT(refusal("\x80\x02"s
                      "K\x01Q."s),
              HasSubstr("a persistent id"));
  EXPECT_THAT(refusal("\x80\x04"s
                      "ccollections\nOrderedDict\n)}(X\x01\x00\x00\x00"s
                      "aNu\x92."s),
              HasSubstr("keyword arguments"));
}

TEST(Pickle, MalformedStreamsAreOneLine) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {""s, "is no pickle of protocol 2 to 5"},
      {"\x80"s, "is no pickle of protocol 2 to 5"},
      {"\x80\x01N."s, "is no pickle of protocol 2 to 5"},
      {"\x80\x06N."s, "is no pickle of protocol 2 to 5"},
      {"(lp0\n."s, "is no pickle of protocol 2 to 5"},
      {"\x80\x02"s, "ends without the opcode STOP"},
      {"\x80\x02N"s, "ends without the opcode STOP"},
      {"\x80\x02."s, "takes a value from an empty stack"},
      {"\x80\x02NN."s, "leaves 1 values on the stack"},
      {"\x80\x02(N."s, "leaves"},
      {"\x80\x02N.N"s, "1 bytes after its end"},
      {"\x80\x02t."s, "looks for a mark that was never set"},
      {"\x80\x02h\x05."s, "asks for value 5 of its memo"},
      {"\x80\x02q\x00."s, "takes a value from an empty stack"},
      {"\x80\x02X\xff\xff\xff\xffyy."s, "ends too early: 4294967295 bytes are announced and 3 are left"},
      {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s, "ends too early"},
      {"\x80\x02T\xff\xff\xff\xff."s, "a string of -1 bytes"},
      {"\x80\x02\x8b\xff\xff\xff\xff."s, "an integer of -1 bytes"},
      {"\x80\x02K"s, "ends too early"},
      {"\x80\x02"s
       "cposix"s,
       "a line without an end"},
      {"\x80\x02Ns."s, "takes a value from an empty stack"},
      {"\x80\x02](K\x01u."s, "sets items of a list"},
      {"\x80\x02}(K\x01u."s, "a key of a dict has no value"},
      {"\x80\x02}(K\x01NK\x01Nu."s, "stands twice in a dict"},
      {"\x80\x02}(]Nu."s, "a list is the key of a dict"},
      {"\x80\x02}(K\x01"s
       "e."s,
       "appends to a dict"},
      {"\x80\x02I5\n."s, "opcode 73 is not one of"},
      {"\x80\x05\x97."s, "opcode 151 is not one of"},
      {"\x80\x02\x82\x01."s, "opcode 130 is not one of"},
      {"\x80\x04K\x01K\x02\x93."s, "a name that is not made of two strings"},
      {"\x80\x02(N0N0t0."s, "takes a value from an empty stack"},
  };
  for (const auto& [body, why] : cases) EXPECT_THAT(refusal(body), HasSubstr(why));
}

TEST(Pickle, LimitsHold) {
  std::string deep = "\x80\x02"s + std::string(1000, ']') + std::string(999, 'a') + ".";
  EXPECT_THAT(refusal(deep), HasSubstr("nested deeper than 100"));
  // A million lists, one in the other, must neither be walked nor be freed by recursion.
  deep = "\x80\x02"s + std::string(900'000, ']') + std::string(899'999, 'a') + ".";
  EXPECT_THAT(refusal(deep), HasSubstr("nested deeper than 100"));
  EXPECT_THAT(refusal("\x80\x02"s + std::string(2'000'000, 'N') + "."), HasSubstr("values on the stack"));
  EXPECT_THAT(refusal("\x80\x02"s + std::string(2'000'000, '(') + "."), HasSubstr("too many marks"));
  EXPECT_THAT(refusal("\x80\x02]q\x00h\x00"s
                      "a."s),
              HasSubstr("a value contains itself"));
  EXPECT_THAT(refusal("\x80\x02]q\x00h\x00"s
                      "a0N."s),
              "no error")
      << "a cycle outside of the result is only freed";
  EXPECT_THAT(refusal("\x80\x02"s
                      "NNN."s,
                      {.values = 2}),
              HasSubstr("more than 2 values"));
  // Each list has the one before it twice: small in the file, 2^60 values when written out.
  std::string laughs = "\x80\x02]q\x00"s;
  for (int i = 0; i < 60; ++i)
    laughs += "](h"s + static_cast<char>(i) + "h" + static_cast<char>(i) + "eq" + static_cast<char>(i + 1);
  EXPECT_THAT(refusal(laughs + std::string(61, '0') + "h\x3c."s), HasSubstr("when shared ones are counted"));
  EXPECT_THAT(refusal("\x80\x02}(X\x00\x20\x00\x00"s + std::string(8192, 'k') + "Nu."s),
              HasSubstr("a key of 8192 bytes"));
  // One text, encoded again and again.
  std::string again = "\x80\x02X\x00\x10\x00\x00"s + std::string(4096, 'x') +
                      "q\x00"s
                      "0c_codecs\nencode\nq\x01"s
                      "0X\x06\x00\x00\x00latin1q\x02"s
                      "0]("s;
  for (int i = 0; i < 10; ++i) again += "h\x01h\x00h\x02\x86R"s;
  EXPECT_THAT(refusal(again + "e."), HasSubstr("asks for more memory than it has bytes"));
}

TEST(Pickle, EveryBeginningAndEveryChangedByteIsAnsweredInOneLine) {
  for (const char* name : {"numpy2.pkl", "numpy5.pkl", "cifar_like.pkl"}) {
    const auto body = read_file(weight_fixture(name));
    const auto read = [&](const std::string& bytes) {
      return error_of([&] { read_numpy_pickle(std::as_bytes(std::span(bytes)), name); });
    };
    ASSERT_EQ(read(body), "no error");
    for (size_t i = 0; i < body.size(); ++i) {
      EXPECT_NE(read(body.substr(0, i)), "no error") << i;
      for (const int change : {1, 0x80, 0xff}) {
        auto changed = body;
        changed[i] = static_cast<char>(changed[i] ^ change);
        read(changed);
      }
    }
  }
}

TEST(NumpyPickle, EveryProtocolGivesTheSameArrays) {
  for (const int protocol : {2, 3, 4, 5}) {
    SCOPED_TRACE(protocol);
    const auto value = read_numpy_pickle(weight_fixture(fmt::format("numpy{}.pkl", protocol)));
    const auto array = [&](const char* name) { return numpy_tensor(*value.find(name)); };
    EXPECT_TRUE(array("data").equal(torch::arange(12, torch::kUInt8).view({3, 4})));
    EXPECT_TRUE(array("columns").equal(torch::arange(6, torch::kFloat).view({2, 3})));
    EXPECT_TRUE(array("big").equal(torch::arange(3, torch::kInt)));
    EXPECT_TRUE(array("scalar").equal(torch::tensor(2.5, torch::kDouble)));
    EXPECT_TRUE(array("flags").equal(torch::tensor({true, false})));
    EXPECT_EQ(array("empty").sizes(), (at::IntArrayRef{0, 3}));
    EXPECT_EQ(array("complex").item().toComplexDouble(), (c10::complex<double>{1, 2}));
    EXPECT_EQ(value.find("labels")->items()[1].integer(), 9);
    EXPECT_FALSE(numpy_tensor(*value.find("labels")).defined());
  }
}

TEST(NumpyPickle, ReadsWhatPython2Wrote) {
  const auto batch = read_numpy_pickle(weight_fixture("cifar_like.pkl"));
  EXPECT_EQ(batch.find("batch_label")->text(), "training batch 1 of 5");
  const auto pixels = numpy_tensor(*batch.find("data"));
  ASSERT_EQ(pixels.sizes(), (at::IntArrayRef{3, 100}));
  EXPECT_EQ(pixels[2][55].item<int>(), 255);
  EXPECT_EQ(pixels[2][99].item<int>(), 43);
  EXPECT_EQ(batch.find("labels")->items()[0].integer(), 6);
}

TEST(NumpyPickle, RefusesObjectsAndNames) {
  EXPECT_THAT(error_of([] { read_numpy_pickle(weight_fixture("objects.pkl")); }), HasSubstr("numpy arrays of \"O8\""));
  EXPECT_THAT(error_of([] { read_numpy_pickle(weight_fixture("system.pkl")); }), HasSubstr("asks for posix.system"));
  EXPECT_THAT(error_of([] { read_numpy_pickle(weight_fixture("linear.pth")); }), HasSubstr("is no pickle"));
}

}  // namespace
}  // namespace levin::pickle_tests
