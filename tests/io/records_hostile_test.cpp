#include <atomic>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/records/record_fields.h"
#include "levin/io/records/record_index.h"
#include "levin/io/records/tar/tar_format.h"
#include "levin/io/records/tfrecord/example.h"
#include "levin/io/records/tfrecord/format.h"
#include "levin/io/records/tfrecord/tf_record.h"
#include "levin/io/weights/npy.h"
#include "tests/io/records_testing.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using detail::split_tar_name;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hex;
using testing::plain_record;
using testing::record_fixtures;
using testing::TemporaryFolder;

std::string unhex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return bytes;
}

/// What opening and reading all of a file with that content says.
std::string refusal(const TemporaryFolder& folder, const std::string& name, const std::string& content) {
  const auto path = folder / name;
  std::ofstream(path, std::ios::binary) << content;  // not write_file: hundreds of files need not reach the disk
  return error_of([&] {
    const auto reader = open_records(path.string());
    for (int64_t i = 0; i < reader->size(); ++i) reader->read(i);
  });
}

void fix_tar_sum(std::string& block) {
  block.replace(148, 8, "        ");
  uint64_t sum = 0;
  for (const char c : block.substr(0, 512)) sum += static_cast<uint8_t>(c);
  block.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
}

std::string tar_member(const std::string& name, const std::string& content) {
  return detail::tar_header(name, content.size()) + content + std::string(detail::tar_padding(content.size()), '\0');
}

/// What ends an archive.
const std::string kTarEnd(1024, '\0');

TEST(TarNames, AreSplitAsWebDatasetSplitsThem) {
  auto split = [](std::string_view name) {
    const auto parts = split_tar_name(name);
    return parts ? fmt::format("{}|{}", parts->key, parts->extension) : "none";
  };
  EXPECT_EQ(split("a/b.seg.png"), "a/b|seg.png");
  EXPECT_EQ(split("a.b/c.PNG"), "a.b/c|PNG");
  EXPECT_EQ(split("/abs/../x.png"), "/abs/../x|png");
  EXPECT_EQ(split("x."), "x|");
  EXPECT_EQ(split("a..png"), "a|.png");
  EXPECT_EQ(split("a/.hidden"), "a/|hidden");
  EXPECT_EQ(split("__a__b.png"), "__a__b|png");
  EXPECT_EQ(split("a/__b__"), "none");
  EXPECT_EQ(split("__meta__.json"), "__meta__|json");
  for (const char* none : {"", ".", "x", "a/x", ".hidden", "a.b/.hidden", "a.b/c", "__meta__", "____", "__m__/x.png"})
    EXPECT_EQ(split(none), "none") << none;
}

TEST(Tar, WritesWhatTarToolsWrite) {
  const auto header = detail::tar_header("a/b.cls", 3);
  ASSERT_EQ(header.size(), 512);
  EXPECT_EQ(header.substr(0, 8), std::string("a/b.cls\0", 8));
  EXPECT_EQ(header.substr(100, 8), std::string("0000444\0", 8));
  EXPECT_EQ(header.substr(124, 12), std::string("00000000003\0", 12));
  EXPECT_EQ(header.substr(257, 8), std::string("ustar\00000", 8));
  EXPECT_EQ(header.substr(265, 8), std::string("bigdata\0", 8));
  EXPECT_EQ(detail::tar_header(std::string(90, 'd') + "/" + std::string(90, 'f'), 1).size(), 512) << "prefix and name";
  EXPECT_EQ(detail::tar_header(std::string(300, 'f'), 1).size(), 3 * 512) << "PAX";
  EXPECT_EQ(detail::tar_header("x", uint64_t{1} << 33).size(), 3 * 512) << "PAX size";
}

TEST(Tar, EverySizeOfNameComesBack) {
  const TemporaryFolder folder;
  const auto path = (folder / "a.tar").string();
  const auto writer = create_records(path);
  std::vector<std::string> keys;
  for (const size_t size : {1, 94, 95, 96, 97, 150, 154, 155, 156, 240, 251, 252, 253, 300, 1000}) {
    std::string key;
    while (key.size() < size) key += key.size() % 50 == 49 ? '/' : 'k';
    if (key.ends_with('/')) key.back() = 'z';
    key += std::to_string(size);
    keys.push_back(key);
    writer->write({.key = key, .fields = {{"text", key}}});
  }
  writer->close();
  const auto reader = open_records(path);
  ASSERT_EQ(reader->size(), static_cast<int64_t>(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(reader->read(static_cast<int64_t>(i)).key, keys[i]);
}

TEST(Tar, RefusesDamagedFiles) {
  const TemporaryFolder folder;
  const std::string good = tar_member("a.txt", "hello") + tar_member("b.txt", std::string(600, 'x'));
  EXPECT_EQ(refusal(folder, "good.tar", good + std::string(1024, '\0')), "no error");
  EXPECT_THAT(refusal(folder, "no_end.tar", good), HasSubstr("is truncated: the two empty blocks"));
  EXPECT_THAT(refusal(folder, "one_block.tar", good + std::string(512, '\0')),
              HasSubstr("is truncated: the two empty"));
  EXPECT_THAT(refusal(folder, "empty.tar", ""), HasSubstr("is truncated"));

  auto bad = good;
  bad[1030] ^= 1;
  EXPECT_EQ(refusal(folder, "sum.tar", bad),
            "[records] \"" + (folder / "sum.tar").string() + "\" has a bad checksum in the header at byte 1024");
  EXPECT_THAT(refusal(folder, "cut.tar", good.substr(0, 1700)),
              HasSubstr("is truncated: it ends within the member at byte 1024"));
  EXPECT_THAT(refusal(folder, "cut_head.tar", good.substr(0, 1100)),
              HasSubstr("is truncated: it ends within the header"));

  const std::vector<std::string> sizes{"-0000000005",
                                       "000000000x5",
                                       "77777777777",
                                       std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfb"),
                                       std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12),
                                       std::string("\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12)};
  for (const auto& size : sizes) {
    bad = good;
    bad.replace(124, 12, size + std::string(12 - size.size(), '\0'));
    fix_tar_sum(bad);
    EXPECT_THAT(refusal(folder, "size.tar", bad), HasSubstr("at byte 0")) << hex(size);
  }
  bad = good;
  bad.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\5", 12));
  fix_tar_sum(bad);
  EXPECT_EQ(refusal(folder, "base256.tar", bad + kTarEnd), "no error") << "a size in base 256";

  for (const char* pax : {"999 path=x\n", "x path=y\n", "7 path\n", "3 =", "12 path=abc\nx",
                          "18446744073709551616 a=b\n", "11 size=-1\n", "20 GNU.sparse.x=abc\n"}) {
    std::string attributes = pax;
    auto head = detail::tar_header("pax", attributes.size());
    head[156] = 'x';
    fix_tar_sum(head);
    const auto line = refusal(folder, "pax.tar",
                              head + attributes + std::string(detail::tar_padding(attributes.size()), '\0') + good);
    EXPECT_THAT(line, HasSubstr("at byte 0")) << pax;
  }
  auto huge = detail::tar_header("long", uint64_t{2} << 20);
  huge[156] = 'L';
  fix_tar_sum(huge);
  EXPECT_THAT(refusal(folder, "long.tar", huge + std::string(2 << 20, 'n') + good), HasSubstr("of more than 1 MiB"));

  EXPECT_THAT(refusal(folder, "twice.tar", tar_member("a.txt", "1") + tar_member("a.TXT", "2") + kTarEnd),
              HasSubstr("has two members \"a.TXT\" in one sample, the second at byte 1536"));
  EXPECT_THAT(refusal(folder, "gz.tar", std::string("\x1f\x8b\x08\0", 4) + std::string(30, 'x')),
              HasSubstr("cannot be decompressed"));
}

// The same key again, later: another sample, as in WebDataset. Nothing is ever written by a name of an archive.
TEST(Tar, KeysAreOnlyKeys) {
  const TemporaryFolder folder;
  const auto path = folder / "a.tar";
  write_file(path,
             tar_member("/etc/x.txt", "1") + tar_member("../../y.txt", "2") + tar_member("/etc/x.txt", "3") + kTarEnd);
  const auto reader = open_records(path.string());
  ASSERT_EQ(reader->size(), 3);
  EXPECT_EQ(reader->read(0).key, "/etc/x");
  EXPECT_EQ(reader->read(1).key, "../../y");
  EXPECT_EQ(std::get<std::string>(*reader->read(2).find("text")), "3");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

// Cutting a file anywhere or changing any one byte of its headers never does more than give an Error.
TEST(Tar, SurvivesAnyCutAndAnyChange) {
  const TemporaryFolder folder;
  const auto whole = read_file(record_fixtures() / "tarfile-pax.tar");
  for (size_t cut = 0; cut < whole.size(); cut += 487) refusal(folder, "cut.tar", whole.substr(0, cut));
  for (size_t at = 0; at < 2048; at += 11) {
    auto changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    refusal(folder, "changed.tar", changed);
  }
}

TEST(Tar, ShardsByRecordsAndBytes) {
  const TemporaryFolder folder;
  const auto path = (folder / "s.tar").string();
  auto write = [&](const RecordWriterOptions& options, const std::string& to) {
    const auto writer = create_records(to, options);
    for (int64_t i = 0; i < 7; ++i) writer->write(plain_record(i));
    writer->close();
  };
  write({.shard_records = 3}, path);
  EXPECT_EQ(open_records((folder / "s-{000000..000002}.tar").string())->size(), 7);
  EXPECT_EQ(open_records((folder / "s-*.tar").string())->read(6).key, "k006");
  EXPECT_THAT(error_of([&] { write({.shard_records = 3}, path); }), HasSubstr("s-000000.tar\" is there already"));
  write({.shard_records = 4, .overwrite = true}, path);
  EXPECT_FALSE(fs::exists(folder / "s-000002.tar")) << "of the longer run before";
  EXPECT_EQ(open_records((folder / "s-*.tar").string())->size(), 7);
  write({.shard_bytes = 8000}, (folder / "b-%04d.tar").string());
  EXPECT_EQ(open_records((folder / "b-*.tar").string())->size(), 7);
  EXPECT_TRUE(fs::exists(folder / "b-0002.tar"));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (entry.path().filename().string().starts_with("b-")) {
      EXPECT_LE(fs::file_size(entry.path()), 10240);
    }
  EXPECT_THAT(error_of([&] { create_records((folder / "b-%d.tar").string()); }), HasSubstr("is written %06d"));
}

// More files than a process may have open are read all the same, by several threads.
TEST(Tar, ManyShardsShareFewDescriptors) {
  const TemporaryFolder folder;
  constexpr int64_t kFiles = 260;
  for (int64_t i = 0; i < kFiles; ++i)
    std::ofstream(folder / fmt::format("{:03}.tar", i))
        << tar_member(fmt::format("k{}.txt", i), fmt::format("t{}", i)) + kTarEnd;
  const auto before = testing::process_counts().descriptors;
  const auto reader = open_records((folder / "{000..259}.tar").string());
  ASSERT_EQ(reader->size(), kFiles);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t k = 0; k < kFiles; ++k) {
        const int64_t i = (k * 7 + t * 65) % kFiles;
        if (std::get<std::string>(*reader->read(i).find("text")) != fmt::format("t{}", i)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(testing::process_counts().descriptors, before + 200);
}

TEST(Tar, RefusesWhatCannotBeAName) {
  const TemporaryFolder folder;
  const auto writer = create_records((folder / "a.tar").string());
  auto line = [&](const Record& record) { return error_of([&] { writer->write(record); }); };
  EXPECT_THAT(line({.key = "__x__", .fields = {{"text", "x"}}}), HasSubstr("cannot be a name"));
  EXPECT_THAT(line({.key = "a/../b", .fields = {{"text", "x"}}}), HasSubstr("cannot be a name"));
  EXPECT_THAT(line({.key = "a\nb", .fields = {{"text", "x"}}}), HasSubstr("\"a?b\" cannot be a name"));
  EXPECT_THAT(line({.key = "a", .fields = {}}), HasSubstr("has no fields"));
  EXPECT_THAT(line({.key = "a", .fields = {{"X", "1"}, {"x", "2"}}}), HasSubstr("would be written as .x"));
  EXPECT_EQ(line({.key = "a.b", .fields = {{"text", "x"}}}), "no error") << "dots become underscores";
  EXPECT_THAT(line({.key = "a_b", .fields = {{"text", "x"}}}), HasSubstr("two records in a row"));
}

TEST(Tar, LabelsAreFoundWhereTheyStand) {
  const TemporaryFolder folder;
  const auto path = folder / "a.tar";
  write_file(path, tar_member("__classes__", "cat\ndog\n") + tar_member("a.cls", " 7\n") + tar_member("b.txt", "12\n") +
                       tar_member("c.json", R"({"label": 3})") + tar_member("d.cls", "dog") +
                       tar_member("e.json", "[[[") + tar_member("f.cls", "wolf") + tar_member("g.txt", "x") +
                       tar_member("g.cls", "5") + tar_member("h.jpg", "j") + tar_member("h.png", "p") + kTarEnd);
  const auto reader = open_records(path.string());
  auto label = [&](int64_t i) -> int64_t {
    const auto record = reader->read(i);
    const auto* found = record.find("label");
    const auto* ints = found ? std::get_if<std::vector<int64_t>>(found) : nullptr;
    return ints ? ints->at(0) : -1;
  };
  EXPECT_EQ(label(0), 7);
  EXPECT_EQ(label(1), 12);
  EXPECT_EQ(label(2), 3);
  EXPECT_EQ(label(3), 1);
  EXPECT_EQ(label(4), -1);
  EXPECT_EQ(label(5), -1);
  EXPECT_EQ(label(6), 5);
  EXPECT_EQ(std::get<std::string>(*reader->read(7).find("image")), "j");
  EXPECT_EQ(std::get<std::string>(*reader->read(7).find("png")), "p") << "a second image keeps its extension";
}

TEST(RecordIndex, IsACacheAndNothingMore) {
  const TemporaryFolder folder;
  const auto file = folder / "a.tar";
  write_file(file, "content");
  EXPECT_FALSE(detail::load_record_index(file, "tar"));
  detail::save_record_index(file, "tar", "0 7 a\n");
  EXPECT_EQ(detail::load_record_index(file, "tar"), "0 7 a\n");
  EXPECT_FALSE(detail::load_record_index(file, "tfrecord"));
  auto text = read_file(folder / "a.tar.index");
  text.back() = 'x';
  write_file(folder / "a.tar.index", text);
  EXPECT_FALSE(detail::load_record_index(file, "tar")) << "damaged";
  detail::save_record_index(file, "tar", "0 7 a\n");
  write_file(file, "Content");
  EXPECT_FALSE(detail::load_record_index(file, "tar")) << "of another time";
  detail::save_record_index(folder / "nowhere/x", "tar", "");  // says nothing

  // One that fits is used in place of the walk, and still checked.
  write_file(file, tar_member("a.txt", "hello") + kTarEnd);
  detail::save_record_index(file, "tar", "512 4 other.txt\n");
  EXPECT_EQ(open_records(file.string())->read(0).key, "other");
  detail::save_record_index(file, "tar", "512 40000 other.txt\n");
  EXPECT_EQ(open_records(file.string())->read(0).key, "a");
}

TEST(TfRecord, GivesTheBytesOfTheFormat) {
  std::string out;
  detail::append_tfrecord(out, "levin");
  EXPECT_EQ(hex(out), "0500000000000000eab2043e6c6576696eae90b07e");
  out.clear();
  detail::append_tfrecord(out, detail::write_tf_example({{"image", std::vector<std::string_view>{"ab"}},
                                                         {"label", std::vector<int64_t>{7}}}));
  EXPECT_EQ(hex(out),
            "2300000000000000b09f77430a210a0f0a05696d61676512060a040a0261620a0e0a056c6162656c12051a030a010736536c1e");
}

TEST(TfRecord, RefusesDamagedFiles) {
  const TemporaryFolder folder;
  const auto whole = read_file(record_fixtures() / "train-00000-of-00001");
  const auto where = "\"" + (folder / "x.tfrecord").string() + "\"";
  auto changed = [&](size_t at) {
    auto bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    return refusal(folder, "x.tfrecord", bytes);
  };
  const size_t second = 16 + static_cast<uint8_t>(whole[0]) + 256 * static_cast<uint8_t>(whole[1]);
  EXPECT_EQ(changed(second + 40),
            fmt::format("[records] {}: the record at byte {} has a wrong checksum", where, second));
  EXPECT_EQ(changed(second + 1),
            fmt::format("[records] {}: the length of the record at byte {} has a wrong checksum", where, second));
  EXPECT_THAT(refusal(folder, "x.tfrecord", whole.substr(0, second + 30)),
              HasSubstr(fmt::format("is truncated: the record at byte {} declares", second)));
  EXPECT_THAT(refusal(folder, "x.tfrecord", whole.substr(0, second + 7)), HasSubstr("has no whole head"));
  for (size_t i = 0; i < whole.size(); i += 3) changed(i);
  // Without verification the data are read as they are.
  auto bytes = whole;
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 4);
  write_file(folder / "y.tfrecord", bytes);
  EXPECT_EQ(error_of([&] { open_records((folder / "y.tfrecord").string(), {.verify = false})->read(3); }), "no error");
  EXPECT_THAT(error_of([&] { open_records((folder / "y.tfrecord").string())->read(3); }), HasSubstr("wrong checksum"));
  const auto packed = read_file(record_fixtures() / "whole.tfrecord.gz");
  EXPECT_THAT(refusal(folder, "z.tfrecord.gz", packed.substr(0, packed.size() / 2)), HasSubstr("is truncated"));
  auto broken = packed;
  broken[packed.size() / 2] = static_cast<char>(broken[packed.size() / 2] ^ 0x55);
  EXPECT_THAT(refusal(folder, "z.tfrecord.gz", broken), HasSubstr("[records]"));
}

TEST(TfRecord, RefusesWhatIsNoExample) {
  const TemporaryFolder folder;
  auto line = [&](const std::string& data) {
    std::string file;
    detail::append_tfrecord(file, data);
    return refusal(folder, "x.tfrecord", file);
  };
  EXPECT_EQ(line(""), "no error");
  EXPECT_THAT(line(unhex("0a05")),
              HasSubstr("the record at byte 0 is no tf.train.Example: it ends within a field at byte 2"));
  EXPECT_THAT(line(unhex("0affffffffffffffffff01")), HasSubstr("ends within a field"));
  EXPECT_THAT(line(unhex("0affffffffffffffffffff01")), HasSubstr("has a number of more than 64 bits"));
  EXPECT_THAT(line(unhex("0a80")), HasSubstr("ends within a number"));
  EXPECT_THAT(line(unhex("0f")), HasSubstr("unknown wire type"));
  EXPECT_THAT(line(unhex("00")), HasSubstr("a field without a number"));
  // A list of floats of 5 bytes.
  EXPECT_THAT(line(unhex("0a110a0f0a016112"
                         "0a1208"
                         "0a06"
                         "000000000000")),
              HasSubstr("is no tf.train.Example"));
}

TEST(TfRecord, ReadsListsThatAreNotPacked) {
  // feature "a": int64_list { value: 5 value: -1 }, each with its own tag; unknown fields between.
  const auto ints = unhex(
      "0805"
      "08ffffffffffffffffff01"
      "1001");
  const auto floats = unhex(
      "0d0000003f"
      "0d0000c03f");
  auto wrap = [](int field, const std::string& bytes) {
    return std::string(1, static_cast<char>(field << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
  };
  auto entry = [&](const std::string& name, int kind, const std::string& list) {
    return wrap(1, wrap(1, name) + wrap(2, wrap(kind, list)));
  };
  const auto example = wrap(1, entry("a", 3, ints) + entry("b", 2, floats) + entry("a", 3, unhex("0809")));
  const auto features = detail::parse_tf_example(example);
  ASSERT_EQ(features.size(), 2);
  EXPECT_EQ(std::get<std::vector<int64_t>>(features[0].values), std::vector<int64_t>{9}) << "the later one counts";
  EXPECT_EQ(std::get<std::vector<float>>(features[1].values), (std::vector<float>{0.5, 1.5}));
  const auto first = detail::parse_tf_example(wrap(1, entry("a", 3, ints)));
  EXPECT_EQ(std::get<std::vector<int64_t>>(first[0].values), (std::vector<int64_t>{5, -1}));
}

TEST(TfRecord, ReadsIndexesOfDali) {
  const TemporaryFolder folder;
  const auto file = folder / "a.tfrecord";
  fs::copy_file(record_fixtures() / "tfrecord.tfrecord", file);
  const auto lines = read_file(record_fixtures() / "tfrecord.tfrecord.idx");
  write_file(folder / "a.idx", lines);
  EXPECT_EQ(open_records(file.string())->size(), 4);
  // One that leads elsewhere does not fit and is not used.
  write_file(folder / "a.idx", "0 20\n20 " + std::to_string(fs::file_size(file) - 21) + "\n");
  EXPECT_EQ(open_records(file.string())->size(), 4);
  // One that fits but lies is found out at the record.
  write_file(folder / "a.idx", "0 " + std::to_string(fs::file_size(file)) + "\n");
  EXPECT_THAT(error_of([&] { open_records(file.string())->read(0); }), HasSubstr("is not what its index says"));
}

TEST(Npy, ReadsAndRefuses) {
  const auto bytes = detail::write_npy(at::arange(6, at::kInt).reshape({2, 3}));
  EXPECT_EQ(bytes.size() % 64, 24);
  EXPECT_TRUE(at::equal(detail::read_npy(bytes, "x"), at::arange(6, at::kInt).reshape({2, 3})));
  EXPECT_TRUE(at::equal(detail::read_npy(detail::write_npy(at::scalar_tensor(2.5)), "x"), at::scalar_tensor(2.5)));
  auto with = [&](const std::string& from, const std::string& to) {
    auto changed = bytes;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  EXPECT_TRUE(at::equal(
      detail::read_npy(with("'fortran_order': False, 'shape': (2, 3)", "'fortran_order': True,  'shape': (3, 2)"), "x"),
      at::arange(6, at::kInt).reshape({2, 3}).t()));
  EXPECT_EQ(detail::read_npy(with("<i4", ">i4"), "x")[0][1].item<int>(), 1 << 24);
  EXPECT_THAT(error_of([&] { detail::read_npy(with("'<i4'", "'|O' "), "x"); }),
              HasSubstr("type \"O\", which is not read"));
  EXPECT_THAT(error_of([&] { detail::read_npy(with("(2, 3)", "(2, 4)"), "x"); }),
              HasSubstr("declares an array of 32 bytes, there are 24"));
  EXPECT_THAT(error_of([&] { detail::read_npy(with("(2, 3)", "(-2,3)"), "x"); }), HasSubstr("bad shape"));
  EXPECT_THAT(error_of([&] { detail::read_npy(with("(2, 3), }   ", "(9999999999,9999999999)"), "x"); }),
              HasSubstr("[records] x"));
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_NE(error_of([&] { detail::read_npy(std::string_view(bytes).substr(0, cut), "x"); }), "no error");
}

TEST(Lmdb, RefusesPicklesAndOtherFiles) {
  if (!testing::has_format("lmdb")) GTEST_SKIP() << "no LMDB";
  const auto path = (record_fixtures() / "pickled.lmdb").string();
  EXPECT_EQ(error_of([&] { open_records(path)->read(1); }),
            "[records] \"" + path +
                "\": 1 is a pickle of Python, which is not read; write the image and the label "
                "under keys of their own (\"000042.png\", \"000042.cls\")");
  const TemporaryFolder folder;
  const auto whole = read_file(record_fixtures() / "members.mdb");
  EXPECT_THAT(refusal(folder, "a.mdb", whole.substr(0, whole.size() - 8192)), HasSubstr("is truncated: it declares"));
  EXPECT_THAT(refusal(folder, "b.mdb", "nothing"), HasSubstr("is no LMDB database"));
  EXPECT_THAT(refusal(folder, "c.mdb", std::string(9000, 'x')), HasSubstr("is no LMDB database"));
  EXPECT_EQ(open_records((record_fixtures() / "classes.lmdb").string())->classes(),
            (std::vector<std::string>{"cat", "dog"}));
}

// The map begins small and grows; keys have an end.
TEST(Lmdb, GrowsAndLimitsKeys) {
  if (!testing::has_format("lmdb")) GTEST_SKIP() << "no LMDB";
  const TemporaryFolder folder;
  const auto path = (folder / "a.mdb").string();
  const auto writer = create_records(path);
  for (int64_t i = 0; i < 3; ++i)
    writer->write({.key = fmt::format("{:03}", i), .fields = {{"image", std::string(9 << 20, static_cast<char>(i))}}});
  EXPECT_THAT(error_of([&] {
                writer->write({.key = std::string(508, 'k'), .fields = {{"text", "x"}}});
              }),
              HasSubstr("has 512 bytes; LMDB takes 511"));
  writer->close();
  const auto reader = open_records(path);
  ASSERT_EQ(reader->size(), 3);
  EXPECT_EQ(std::get<std::string>(*reader->read(2).find("image")), std::string(9 << 20, 2));
  const auto again = create_records((folder / "b.mdb").string());
  again->write({.key = "a", .fields = {{"text", "x"}}});
  again->write({.key = "a", .fields = {{"text", "y"}}});
  EXPECT_THAT(error_of([&] { again->close(); }), HasSubstr("has the key \"a.txt\" already"));
}

TEST(Hdf5, ReadsSlicesAndRefusesWhatItCannot) {
  if (!testing::has_format("hdf5")) GTEST_SKIP() << "no HDF5";
  EXPECT_EQ(open_records((record_fixtures() / "groups.h5").string(), {.split = "test"})->size(), 2);
  EXPECT_EQ(open_records((record_fixtures() / "chunked.h5").string())->classes().size(), 10);
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder, "a.h5", "nothing"), HasSubstr("cannot open"));
  for (const char* name : {"contiguous.h5", "chunked.h5", "vlen.h5"}) {
    const auto whole = read_file(record_fixtures() / name);
    EXPECT_THAT(refusal(folder, name, whole.substr(0, whole.size() / 2)), HasSubstr("[records] cannot open"));
  }
  // Compressed bytes that are damaged are found out.
  auto bytes = read_file(record_fixtures() / "chunked.h5");
  const auto at = bytes.find("\x78\x5e") != std::string::npos ? bytes.find("\x78\x5e") : bytes.find("\x78\x9c");
  ASSERT_NE(at, std::string::npos);
  for (size_t i = 3; i < 12; ++i) bytes[at + i] = static_cast<char>(bytes[at + i] ^ 0x5a);
  EXPECT_THAT(refusal(folder, "damaged.h5", bytes), HasSubstr("is damaged"));
}

TEST(Hdf5, WantsTheSameOfEveryRecord) {
  if (!testing::has_format("hdf5")) GTEST_SKIP() << "no HDF5";
  const TemporaryFolder folder;
  const auto writer = create_records((folder / "a.h5").string());
  auto line = [&](const Record& record) { return error_of([&] { writer->write(record); }); };
  const auto label = std::vector<int64_t>{1};
  EXPECT_EQ(line({.key = "a", .fields = {{"image", at::zeros({2, 2, 3}, at::kByte)}, {"label", label}}}), "no error");
  EXPECT_THAT(line({.key = "b", .fields = {{"image", at::zeros({2, 3, 3}, at::kByte)}, {"label", label}}}),
              HasSubstr("HDF5 keeps rows of one shape"));
  EXPECT_THAT(line({.key = "c", .fields = {{"image", "encoded"}, {"label", label}}}), HasSubstr("in one way"));
  EXPECT_THAT(line({.key = "d", .fields = {{"label", label}}}), HasSubstr("has 1 fields, the first record 2"));
  EXPECT_THAT(line({.key = "e", .fields = {{"text", "x"}, {"label", label}}}), HasSubstr("has no field \"image\""));
}

}  // namespace
}  // namespace levin
