#include "levin/loggers/logger_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/loggers/console.h"

namespace levin {
namespace {

TEST(LoggerNames, EachMakesALogger) {
  EXPECT_THAT(logger_names(), ::testing::ElementsAre("tensorboard", "csv", "json", "console"));
  for (const auto& name : logger_names()) EXPECT_NE(make_logger(name, ::testing::TempDir()), nullptr) << name;
  EXPECT_NE(std::dynamic_pointer_cast<ConsoleLogger>(make_logger("console", {})), nullptr);
  EXPECT_EQ(make_logger("wandb", {}), nullptr);
}

}  // namespace
}  // namespace levin
