// Names from files, as they may stand in a line.
#include <gtest/gtest.h>

#include "levin/core/host.h"
#include "levin/core/words.h"

namespace levin {
namespace {

TEST(Printable, KeepsWhatPeopleRead) {
  EXPECT_EQ(printable("blocks.0/weight é 漢 🙂"), "blocks.0/weight é 漢 🙂");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, HidesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[2J\n\x7f"), "a?[2J??");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "??2J")
      << "a control character of two bytes";
}

TEST(Printable, HidesWhatIsNoText) {
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a?b");
  EXPECT_EQ(printable("\xe6\xbc"), "??") << "cut off";
  EXPECT_EQ(printable("\xc0\xaf"), "??") << "longer than needed";
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "half of a pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????") << "past the last character";
}

TEST(Printable, CutsLongNamesBetweenCharacters) {
  EXPECT_EQ(shown(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(shown(std::string(300, 'a')), std::string(200, 'a') + "...");
  EXPECT_EQ(shown(std::string(199, 'a') + "漢字"), std::string(199, 'a') + "...");
}

TEST(HostName, IsOneWord) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(host_name(), host_name());
}

}  // namespace
}  // namespace levin
