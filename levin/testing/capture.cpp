#include "levin/testing/capture.h"

#include <gtest/gtest.h>

namespace levin::testing {
namespace {

std::string captured(void (*start)(), std::string (*stop)(), const std::function<void()>& f) {
  start();
  try {
    f();
  } catch (...) {
    stop();
    throw;
  }
  return stop();
}

}  // namespace

std::string captured_stdout(const std::function<void()>& f) {
  return captured(::testing::internal::CaptureStdout, ::testing::internal::GetCapturedStdout, f);
}

std::string captured_stderr(const std::function<void()>& f) {
  return captured(::testing::internal::CaptureStderr, ::testing::internal::GetCapturedStderr, f);
}

}  // namespace levin::testing
