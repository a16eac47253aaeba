#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image.h"
#include "levin/io/records/records.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string fixture(const std::string& name) {
  return testing::source_dir() + "/tests/io/fixtures/plain/" + name;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

int64_t label_in(const Record& record, const char* field = "label") {
  return std::get<std::vector<int64_t>>(*record.find(field)).at(0);
}
const std::string& text_in(const Record& record, const char* field = "text") {
  return std::get<std::string>(*record.find(field));
}
const Tensor& pixels_in(const Record& record) {
  return std::get<Tensor>(*record.find("image"));
}
/// uint8 [H, W, C], decoded when it has to be.
Tensor image_in(const Record& record) {
  if (const auto* bytes = std::get_if<std::string>(record.find("image")))
    return decode_image(std::as_bytes(std::span(*bytes)), {.mode = ImageMode::kUnchanged}).permute({1, 2, 0});
  return pixels_in(record);
}

class PlainRecords : public testing::FolderTest {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& content) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::string slurp(const std::string& name) const { return read_file(folder_ / name); }
  /// What lies in the folder of the test, hidden names too.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (!entry.is_directory()) found.push_back(fs::relative(entry.path(), folder_).string());
    std::sort(found.begin(), found.end());
    return found;
  }
};

/// Records with 32x32 pixels in the order of their labels, as a folder gives them back.
std::vector<Record> drawn_records(int64_t count, int64_t classes, int64_t channels = 3) {
  std::vector<Record> records;
  for (int64_t i = 0; i < count; ++i) {
    Record record;
    record.key = fmt::format("{:06}", i);
    auto pixels = at::arange(32 * 32 * channels, at::kInt).mul(i + 3).remainder(251).to(at::kByte);
    record.set("image", pixels.reshape({32, 32, channels}));
    record.set("label", std::vector<int64_t>{i * classes / count});
    records.push_back(std::move(record));
  }
  return records;
}

void write_all(const std::string& path, const std::vector<Record>& records, RecordWriterOptions options) {
  const auto writer = create_records(path, options);
  for (const auto& record : records) writer->write(record);
  writer->close();
}

void expect_same(const RecordReader& reader, const std::vector<Record>& records) {
  ASSERT_EQ(reader.size(), static_cast<int64_t>(records.size()));
  for (int64_t i = 0; i < reader.size(); ++i) {
    const Record record = reader.read(i);
    EXPECT_TRUE(at::equal(image_in(record), image_in(records[static_cast<size_t>(i)]))) << reader.where(i);
    EXPECT_EQ(label_in(record), label_in(records[static_cast<size_t>(i)])) << reader.where(i);
  }
}

TEST_F(PlainRecords, AFolderIsInTheOrderOfTorchvision) {
  const auto reader = open_records(fixture("folder"));
  EXPECT_EQ(reader->format(), "folder");
  EXPECT_EQ(reader->classes(), lines_of(fixture("folder_classes.txt")));
  std::vector<std::string> order;
  for (int64_t i = 0; i < reader->size(); ++i) {
    const Record record = reader->read(i);
    EXPECT_EQ(text_in(record, "image"), read_file(reader->where(i)));
    order.push_back(fs::relative(reader->where(i), fixture("folder")).string() + "\t" +
                    std::to_string(label_in(record)));
  }
  EXPECT_EQ(order, lines_of(fixture("folder_order.txt")));
  EXPECT_EQ(reader->read(0).key, "10/a");
  EXPECT_THAT(error_of([&] { reader->read(99); }), HasSubstr("record 99 was asked for"));
}

TEST_F(PlainRecords, AFolderWithSplitsAndOneWithoutClasses) {
  const auto png = encode_image(at::zeros({3, 2, 2}, at::kByte));
  for (const auto* name : {"train/cat/1.png", "train/dog/1.png", "train/dog/1.jpg", "val/cat/9.png", "val/dog/8.png"})
    put(std::string("pets/") + name, png);
  EXPECT_EQ(open_records(path("pets"))->size(), 3);
  const auto val = open_records(path("pets"), {.split = "test"});
  EXPECT_EQ(val->size(), 2);
  EXPECT_THAT(val->classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(val->where(0), ::testing::EndsWith("pets/val/cat/9.png"));
  // 1.jpg and 1.png need different keys.
  const auto train = open_records(path("pets"));
  EXPECT_EQ(train->read(1).key, "dog/1.jpg");
  EXPECT_EQ(train->read(2).key, "dog/1.png");

  put("flat/b.png", png);
  put("flat/a.jpg", png);
  put("flat/.cache/x", "");
  const auto flat = open_records(path("flat"));
  EXPECT_EQ(flat->size(), 2);
  EXPECT_THAT(flat->classes(), IsEmpty());
  EXPECT_EQ(flat->read(0).key, "a");
  EXPECT_EQ(flat->read(0).find("label"), nullptr);
  EXPECT_THAT(error_of([&] { open_records(path("flat"), {.format = "folder", .split = "test"}); }),
              AllOf(HasSubstr("[folder]"), HasSubstr("has no folder \"test\"")));
}

TEST_F(PlainRecords, AnEmptyClassIsAnError) {
  put("data/full/a.png", "x");
  put("data/empty/readme.txt", "x");
  EXPECT_THAT(error_of([&] { open_records(path("data"), {.format = "folder"}); }),
              AllOf(HasSubstr("without an image"), HasSubstr(": empty")));
  fs::create_directories(folder_ / "nothing");
  EXPECT_THAT(error_of([&] { open_records(path("nothing"), {.format = "folder"}); }), HasSubstr("neither folders"));
}

TEST_F(PlainRecords, LinksAreFollowedAndLoopsEnd) {
  put("other/x/2.png", "b");
  put("data/a/1.png", "a");
  fs::create_directory_symlink(folder_ / "other/x", folder_ / "data/a/linked");
  fs::create_directory_symlink(folder_ / "data/a", folder_ / "data/a/loop");
  const auto reader = open_records(path("data"), {.format = "folder"});
  ASSERT_EQ(reader->size(), 2);
  EXPECT_EQ(reader->read(1).key, "a/linked/2");
}

TEST_F(PlainRecords, PickledCifarIsThatOfTorchvision) {
  for (const auto* kind : {"cifar10", "cifar100"})
    for (const auto* split : {"train", "test"}) {
      const auto reader = open_records(fixture(kind), {.split = split});
      EXPECT_EQ(reader->format(), kind);
      const auto lines = lines_of(fixture(std::string(kind) + "_" + split + ".txt"));
      ASSERT_EQ(reader->size(), static_cast<int64_t>(lines.size()));
      for (int64_t i = 0; i < reader->size(); ++i) {
        const Record record = reader->read(i);
        const auto image = pixels_in(record).to(at::kLong);
        const auto sums = image.sum(at::IntArrayRef{0, 1});
        std::ostringstream line;
        for (int64_t c = 0; c < 3; ++c) line << sums[c].item<int64_t>() << " ";
        for (int64_t c = 0; c < 3; ++c) line << image[3][5][c].item<int64_t>() << " ";
        line << label_in(record);
        EXPECT_EQ(line.str(), lines[static_cast<size_t>(i)]);
      }
    }
  const auto ten = open_records(fixture("cifar10"));
  EXPECT_EQ(ten->classes().at(9), "truck");
  EXPECT_THAT(ten->where(4), ::testing::EndsWith("data_batch_2: record 1"));
  const auto hundred = open_records(fixture("cifar100/cifar-100-python"));
  EXPECT_EQ(hundred->classes().at(99), "fine_99");
  EXPECT_GE(label_in(hundred->read(0), "coarse_label"), 0);
}

TEST_F(PlainRecords, BinaryCifarIsThatOfItsAuthors) {
  // Label, then the red plane row by row, then green, then blue.
  std::string bytes(1 + 3072, '\0');
  bytes[0] = 7;
  bytes[1] = 11;                  // red of row 0, column 0
  bytes[1 + 1024 + 33] = 22;      // green of row 1, column 1
  bytes[1 + 2048 + 31] = '\x80';  // blue of row 0, column 31
  put("c/data_batch_1.bin", bytes + bytes);
  put("c/data_batch_2.bin", bytes);
  put("c/batches.meta.txt", "a\nb\n\n");
  const auto reader = open_records(path("c"));
  EXPECT_EQ(reader->format(), "cifar10");
  ASSERT_EQ(reader->size(), 3);
  EXPECT_THAT(reader->classes(), ElementsAre("a", "b"));
  const auto record = reader->read(2);
  EXPECT_EQ(label_in(record), 7);
  const auto& image = pixels_in(record);
  EXPECT_EQ(image.sizes(), at::IntArrayRef({32, 32, 3}));
  EXPECT_EQ(image[0][0][0].item<int>(), 11);
  EXPECT_EQ(image[1][1][1].item<int>(), 22);
  EXPECT_EQ(image[0][31][2].item<int>(), 128);
  EXPECT_EQ(image.to(at::kInt).sum().item<int>(), 11 + 22 + 128);

  put("short/data_batch_1.bin", bytes + "x");
  EXPECT_THAT(error_of([&] { open_records(path("short")); }), HasSubstr("no multiple of 3073"));
  bytes[0] = 10;
  put("wrong/data_batch_1.bin", bytes);
  const auto wrong = open_records(path("wrong"));
  EXPECT_THAT(error_of([&] { wrong->read(0); }), AllOf(HasSubstr("record 0"), HasSubstr("label 10")));
  EXPECT_THAT(error_of([&] { open_records(path("c"), {.split = "test"}); }), HasSubstr("test_batch.bin"));
}

TEST_F(PlainRecords, EveryImageFormatGivesBackWhatWasWritten) {
  const auto records = drawn_records(12, 10);
  const std::vector<std::string> names{"disc", "ring", "a", "b", "c", "d", "e", "f", "g", "h"};
  for (const auto* format : {"cifar10", "cifar100", "idx", "csv"}) {
    const auto name = path(std::string(format) + (std::string(format) == "csv" ? ".csv" : ""));
    write_all(name, records, {.format = format, .classes = names});
    expect_same(*open_records(name), records);
    const auto classes = open_records(name)->classes();
    if (std::string(format) != "idx") {
      EXPECT_EQ(classes, names) << format;
    }
  }
  // By number: "10" must not stand before "2".
  const auto many = drawn_records(22, 11);
  write_all(path("numbers"), many, {});
  expect_same(*open_records(path("numbers")), many);
  EXPECT_EQ(open_records(path("numbers"))->classes().at(2), "02");
  // Names in another order than the alphabet's: labels stay, the records are in the order of the names.
  write_all(path("named"), records, {.classes = names});
  const auto named = open_records(path("named"));
  EXPECT_EQ(named->classes(), names);
  ASSERT_EQ(named->size(), 12);
  for (int64_t i = 0; i < 12; ++i) {
    const auto record = named->read(i);
    const auto key = record.key.substr(record.key.find('/') + 1);
    const auto& original = records.at(static_cast<size_t>(std::stoi(key)));
    EXPECT_EQ(label_in(record), label_in(original));
    EXPECT_TRUE(at::equal(image_in(record), pixels_in(original)));
  }
}

TEST_F(PlainRecords, EveryFormatOfImagesBecomesEveryOther) {
  auto records = drawn_records(12, 4);
  std::vector<std::string> formats;
  for (const auto& format : record_formats())
    if (format != "text") formats.push_back(format);
  ASSERT_GE(formats.size(), 7U);
  const auto name = [](const std::string& format) { return format == "csv" ? "x.csv" : format; };
  for (const auto& from : formats) {
    write_all(path(from + "/" + name(from)), records, {.format = from, .classes = {"a", "b", "c", "d"}});
    const auto source = open_records(path(from + "/" + name(from)), {.format = from});
    expect_same(*source, records);
    for (const auto& to : formats) {
      const auto target = path(from + "_to_" + to + "/" + name(to));
      fs::create_directories(fs::path(target).parent_path());
      const auto writer = create_records(target, {.format = to, .classes = source->classes()});
      for (int64_t i = 0; i < source->size(); ++i) writer->write(source->read(i));
      writer->close();
      SCOPED_TRACE(from + " to " + to);
      expect_same(*open_records(target, {.format = to}), records);
    }
  }
}

TEST_F(PlainRecords, EncodedImagesAreWrittenAsTheyAre) {
  const auto jpeg = encode_image(at::arange(32 * 32 * 3, at::kInt).remainder(200).to(at::kByte).view({3, 32, 32}),
                                 {.format = "jpeg"});
  Record record;
  record.key = "../../a/b.c";
  record.set("image", jpeg);
  record.set("label", std::vector<int64_t>{0});
  write_all(path("out"), {record, record}, {.classes = {"one"}});
  EXPECT_THAT(names(), ElementsAre("out/one/_/_/a/b.c-2.jpg", "out/one/_/_/a/b.c.jpg"));
  EXPECT_EQ(slurp("out/one/_/_/a/b.c.jpg"), jpeg);
  // Formats of pixels decode it.
  write_all(path("c10"), {record}, {.format = "cifar10"});
  const auto decoded = decode_image(std::as_bytes(std::span(jpeg))).permute({1, 2, 0});
  EXPECT_TRUE(at::equal(pixels_in(open_records(path("c10"))->read(0)), decoded));
}

TEST_F(PlainRecords, NothingIsThereBeforeClose) {
  const auto records = drawn_records(3, 3);
  for (const auto* format : {"folder", "cifar10", "cifar100", "idx", "csv"}) {
    const auto writer = create_records(path(std::string("x_") + format), {.format = format});
    writer->write(records[0]);
    EXPECT_FALSE(fs::exists(path(std::string("x_") + format)));
  }
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(PlainRecords, WhatStandsThereStaysUnlessAsked) {
  const auto one = drawn_records(1, 1), two = drawn_records(2, 2);
  for (const auto* format : {"folder", "cifar10", "idx", "csv"}) {
    const auto name = path(std::string("y_") + format + (std::string(format) == "csv" ? ".csv" : ""));
    write_all(name, two, {.format = format});
    EXPECT_THAT(error_of([&] { create_records(name, {.format = format}); }), HasSubstr("is there already")) << format;
    write_all(name, one, {.format = format, .overwrite = true});
    EXPECT_EQ(open_records(name)->size(), 1) << format;
  }
  // Replacing deletes; what holds more than images is not given up.
  put("precious/thesis.tex", "years of work");
  EXPECT_THAT(error_of([&] { create_records(path("precious"), {.overwrite = true}); }), HasSubstr("thesis.tex"));
  EXPECT_EQ(slurp("precious/thesis.tex"), "years of work");
}

TEST_F(PlainRecords, BothSplitsGoIntoOneFolder) {
  const auto train = drawn_records(3, 3), test = drawn_records(2, 2);
  for (const auto* format : {"cifar10", "cifar100", "idx"}) {
    const auto name = path(std::string("z_") + format);
    write_all(name, train, {.format = format, .classes = {"a", "b", "c"}});
    write_all(name, test, {.format = format, .classes = {"a", "b", "c"}, .split = "test"});
    expect_same(*open_records(name, {.format = format}), train);
    expect_same(*open_records(name, {.format = format, .split = "test"}), test);
  }
  EXPECT_THAT(error_of([&] { open_records(path("z_idx"), {.split = "tset"}); }), HasSubstr("did you mean \"test\"?"));
}

TEST_F(PlainRecords, CifarHoldsNothingElse) {
  auto records = drawn_records(1, 1);
  const auto refuse = [&](const char* field, FieldValue value) {
    auto record = records[0];
    record.set(field, std::move(value));
    return error_of([&] { write_all(path("no"), {record}, {.format = "cifar10"}); });
  };
  EXPECT_THAT(refuse("image", at::zeros({28, 28, 3}, at::kByte)), HasSubstr("28x28 pixels; the format holds 32x32"));
  EXPECT_THAT(refuse("image", at::zeros({32, 32, 4}, at::kByte)), HasSubstr("4 channels"));
  EXPECT_THAT(refuse("image", at::zeros({32, 32, 3})), HasSubstr("uint8"));
  EXPECT_THAT(refuse("label", std::vector<int64_t>{10}), HasSubstr("label 10"));
  EXPECT_THAT(refuse("label", std::vector<int64_t>{1, 2}), HasSubstr("not one whole number"));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlainRecords, IdxOfColorsAndOfManyClasses) {
  auto gray = drawn_records(4, 2, 1);
  gray[3].set("label", std::vector<int64_t>{70000});
  write_all(path("gray"), gray, {.format = "idx"});
  expect_same(*open_records(path("gray")), gray);
  const auto color = drawn_records(4, 2, 3);
  write_all(path("color"), color, {.format = "idx"});
  expect_same(*open_records(path("color")), color);
  auto mixed = gray;
  mixed[1] = color[1];
  EXPECT_THAT(error_of([&] { write_all(path("mixed"), mixed, {.format = "idx"}); }), HasSubstr("one shape"));
  // A file alone finds its labels.
  expect_same(*open_records(path("gray/train-images-idx3-ubyte")), gray);
}

TEST_F(PlainRecords, ATableIsReadByTheKindOfItsColumns) {
  put("t.csv",
      "\xef\xbb\xbfid,Class,weight,\"a \"\"name\"\"\",count,mixed\r\n"
      "7,dog,1.5,\"one, two\",-3,1\r\n"
      "\r\n"
      "8,cat,,\"line\r\nbreak\",+4,x\r\n"
      "9,dog,1e3,,5,2");
  const auto reader = open_records(path("t.csv"));
  EXPECT_EQ(reader->format(), "csv");
  ASSERT_EQ(reader->size(), 3);
  EXPECT_THAT(reader->classes(), ElementsAre("cat", "dog"));
  const auto second = reader->read(1);
  EXPECT_EQ(label_in(second), 0);
  EXPECT_EQ(label_in(second, "id"), 8);
  EXPECT_EQ(label_in(second, "count"), 4);
  EXPECT_TRUE(std::isnan(std::get<std::vector<double>>(*second.find("weight")).at(0)));
  EXPECT_EQ(text_in(second, "a \"name\""), "line\r\nbreak");
  EXPECT_EQ(text_in(second, "mixed"), "x");
  EXPECT_EQ(text_in(reader->read(0), "a \"name\""), "one, two");
  EXPECT_EQ(text_in(reader->read(2), "mixed"), "2");
  EXPECT_EQ(std::get<std::vector<double>>(*reader->read(2).find("weight")).at(0), 1000.0f);
  EXPECT_THAT(reader->where(2), ::testing::EndsWith("t.csv: row 4"));
}

TEST_F(PlainRecords, TablesThatAreNone) {
  const auto refuse = [&](const std::string& content) {
    put("bad.csv", content);
    return error_of([&] { open_records(path("bad.csv")); });
  };
  EXPECT_THAT(refuse("a,b\n1,2\n1,2,3\n"), HasSubstr("row 3 has 3 cells, the first row has 2"));
  EXPECT_THAT(refuse("a,b\n\"1,2\n"), HasSubstr("never closed"));
  EXPECT_THAT(refuse("a,b\n\"1\"x,2\n"), HasSubstr("follows a closed quote in cell 1"));
  EXPECT_THAT(refuse("a,a\n1,2\n"), HasSubstr("two columns of the name \"a\""));
  EXPECT_THAT(refuse(""), HasSubstr("no rows"));
  const std::string hint = "cells are separated by \",\", and the first row has \";\"";
  EXPECT_THAT(refuse("a;b\n1;2\n3;4\n"), HasSubstr("has one column, \"a;b\"; " + hint));
  EXPECT_THAT(refuse("a;b\n1,5;2\n"), HasSubstr("row 2 has 2 cells, the first row has 1; " + hint));
  EXPECT_THAT(refuse("a\tb\n1\t2\n"), HasSubstr("separated by tabs in a file whose name ends with .tsv"));
  // Texts may have semicolons.
  EXPECT_EQ(refuse("text; of a kind\none\ntwo; three; four\n"), "no error");
}

TEST_F(PlainRecords, ATableMayNameImagesAndHaveNoHeader) {
  const auto png = encode_image(at::full({3, 2, 2}, 9, at::kByte));
  put("t/img/1.PNG", png);
  put("t/list.tsv", "path\tlabel\nimg/1.PNG\t4\n");
  const auto reader = open_records(path("t/list.tsv"));
  EXPECT_EQ(text_in(reader->read(0), "image"), png);
  EXPECT_EQ(label_in(reader->read(0)), 4);
  put("t/gone.csv", "file\nimg/2.png\n");
  const auto gone = open_records(path("t/gone.csv"));
  EXPECT_THAT(error_of([&] { gone->read(0); }), HasSubstr("img/2.png"));
  put("numbers.csv", "1,2.5\n3,4\n");
  const auto numbers = open_records(path("numbers.csv"));
  ASSERT_EQ(numbers->size(), 2);
  EXPECT_EQ(label_in(numbers->read(1), "column_0"), 3);
  EXPECT_EQ(std::get<std::vector<double>>(*numbers->read(1).find("column_1")).at(0), 4.0f);
}

TEST_F(PlainRecords, ATableGivesBackWhatWasWritten) {
  Record record;
  record.key = "k";
  record.set("text", std::string(" \"quoted\", with\nlines "));
  record.set("whole", std::vector<int64_t>{-5});
  record.set("part", std::vector<float>{0.1f});
  record.set("round", std::vector<float>{2.0f});
  write_all(path("out.csv"), {record, record}, {});
  const auto back = open_records(path("out.csv"))->read(1);
  EXPECT_EQ(back.fields.size(), record.fields.size());
  EXPECT_EQ(text_in(back), text_in(record));
  EXPECT_EQ(label_in(back, "whole"), -5);
  EXPECT_EQ(std::get<std::vector<double>>(*back.find("part")).at(0), 0.1);
  EXPECT_EQ(std::get<std::vector<double>>(*back.find("round")).at(0), 2.0f);
  auto other = record;
  other.fields.pop_back();
  EXPECT_THAT(error_of([&] { write_all(path("no.csv"), {record, other}, {}); }), HasSubstr("3 fields"));
  other.set("round", std::vector<float>{1, 2});
  EXPECT_THAT(error_of([&] { write_all(path("no.csv"), {other}, {}); }), HasSubstr("not one number or text"));
}

TEST_F(PlainRecords, TextIsALineARecord) {
  put("a.txt", "first\r\n\r\nthird line\nlast");
  put("b.txt", "again\n");
  const auto reader = open_records(path("a.txt"));
  ASSERT_EQ(reader->size(), 4);
  EXPECT_EQ(text_in(reader->read(0)), "first");
  EXPECT_EQ(text_in(reader->read(1)), "");
  EXPECT_EQ(text_in(reader->read(2)), "third line");
  EXPECT_EQ(text_in(reader->read(3)), "last");
  EXPECT_THAT(reader->where(2), ::testing::EndsWith("a.txt:3"));
  const auto both = open_records(path("{a,b}.txt"));
  ASSERT_EQ(both->size(), 5);
  EXPECT_EQ(text_in(both->read(4)), "again");
  EXPECT_THAT(both->where(4), ::testing::EndsWith("b.txt:1"));
  put("empty.txt", "");
  EXPECT_EQ(open_records(path("empty.txt"))->size(), 0);

  std::vector<Record> records;
  for (int64_t i = 0; i < 4; ++i) records.push_back(reader->read(i));
  write_all(path("copy.txt"), records, {});
  EXPECT_EQ(slurp("copy.txt"), "first\n\nthird line\nlast\n");
  Record two;
  two.set("text", std::string("a\nb"));
  EXPECT_THAT(error_of([&] { write_all(path("no.txt"), {two}, {}); }), HasSubstr("end of line"));
  EXPECT_THAT(error_of([&] { write_all(path("no.txt"), drawn_records(1, 1), {}); }), HasSubstr("no field \"text\""));
}

TEST_F(PlainRecords, LongLinesAndLongFiles) {
  std::string content;
  for (int i = 0; i < 300; ++i) content += std::string(static_cast<size_t>(i) * 50, 'x') + "\n";
  put("long.txt", content);
  const auto text = open_records(path("long.txt"));
  ASSERT_EQ(text->size(), 300);
  for (const int i : {0, 1, 150, 205, 299}) EXPECT_EQ(text_in(text->read(i)).size(), static_cast<size_t>(i) * 50);
  content = "n,t\n";
  for (int i = 0; i < 300; ++i)
    content += std::to_string(i) + ",\"" + std::string(static_cast<size_t>(i) * 50, '\n') + "\"\n";
  put("long.csv", content);
  const auto table = open_records(path("long.csv"));
  ASSERT_EQ(table->size(), 300);
  for (const int i : {0, 1, 150, 205, 299}) {
    EXPECT_EQ(label_in(table->read(i), "n"), i);
    EXPECT_EQ(text_in(table->read(i), "t").size(), static_cast<size_t>(i) * 50);
  }
}

TEST_F(PlainRecords, AFileThatShrinksIsAnError) {
  put("a.txt", "one\ntwo\nthree\n");
  const auto reader = open_records(path("a.txt"));
  fs::resize_file(folder_ / "a.txt", 5);
  EXPECT_EQ(text_in(reader->read(0)), "one");
  EXPECT_THAT(error_of([&] { reader->read(2); }), AllOf(HasSubstr("a.txt"), HasSubstr("too early")));
}

}  // namespace
}  // namespace levin
