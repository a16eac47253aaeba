#include "levin/io/records/idx.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {
namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/io/fixtures";

std::string error_of(const std::string& content, IdxOptions options = {}) {
  const testing::TemporaryFolder folder;
  write_file(folder / "x.idx", content);
  return testing::error_of([&] { read_idx(folder / "x.idx", options); });
}

TEST(Idx, ReadsPlainAndCompressed) {
  const auto expected = torch::tensor({-1, 2, -300, 400, 5, 6}, at::kShort).reshape({2, 3});
  EXPECT_TRUE(torch::equal(read_idx(kFixtures / "short.idx"), expected));
  EXPECT_TRUE(torch::equal(read_idx(kFixtures / "short.idx.gz"), expected));
}

TEST(Idx, RefusesWhatIsWrong) {
  const auto plain = read_file(kFixtures / "short.idx");
  const auto packed = read_file(kFixtures / "short.idx.gz");
  EXPECT_EQ(error_of(plain), "no error");
  EXPECT_NE(error_of("").find("not an IDX file"), std::string::npos);
  EXPECT_NE(error_of("PNG...").find("not an IDX file"), std::string::npos);
  EXPECT_NE(error_of(plain.substr(0, 7)).find("within its header"), std::string::npos);
  EXPECT_NE(error_of(plain.substr(0, 20)).find("truncated"), std::string::npos);
  EXPECT_NE(error_of(plain + "x").find("bytes after"), std::string::npos);
  for (size_t cut = 2; cut < packed.size(); ++cut) EXPECT_NE(error_of(packed.substr(0, cut)), "no error") << cut;
  auto flipped = packed;
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);  // the checksum of the stream
  EXPECT_NE(error_of(flipped).find("decompress"), std::string::npos) << error_of(flipped);

  auto bad = plain;
  bad[2] = 0x0a;
  EXPECT_NE(error_of(bad).find("type code 10"), std::string::npos);
  bad = plain;
  bad[3] = 9;
  EXPECT_NE(error_of(bad).find("9 dimensions"), std::string::npos);
  bad = plain;
  bad.replace(4, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_NE(error_of(bad).find("declares more than"), std::string::npos);
  // Within the limit, but more than a file of this size can hold.
  bad = plain;
  bad.replace(4, 4, std::string("\x10\x00\x00\x00", 4));
  EXPECT_NE(error_of(bad).find("truncated"), std::string::npos);
  EXPECT_NE(error_of(plain, {.limit_bytes = 11}).find("more than 11 bytes"), std::string::npos);
}

}  // namespace
}  // namespace levin
