#pragma once

#include <map>
#include <memory>
#include <string>

#include <ATen/record_function.h>

namespace levin::testing {

/// How often this thread calls each operator while it lives. One at a time.
class OperatorCounts {
 public:
  OperatorCounts() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(count))) { counts().clear(); }
  ~OperatorCounts() { at::removeCallback(handle_); }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  int operator[](const std::string& name) const {
    const auto found = counts().find(name);
    return found == counts().end() ? 0 : found->second;
  }
  [[nodiscard]] std::map<std::string, int> all() const { return counts(); }
  void clear() { counts().clear(); }

 private:
  static std::map<std::string, int>& counts() {
    thread_local std::map<std::string, int> here;
    return here;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts()[function.name()];
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace levin::testing
