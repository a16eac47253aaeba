#include "levin/testing/error_of.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin::testing {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with('[')) << message;
    return message;
  }
  return "no error";
}

}  // namespace levin::testing
