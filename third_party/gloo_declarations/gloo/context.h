#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>

namespace gloo {
namespace transport {
class Pair;
namespace tcp {
// Every transport that PyTorch builds on Linux is this class or derives from it; Gloo itself casts to it in the same way.
class Pair {
 public:
  bool isConnected();
  // Ends the pending operations of this pair and closes its connection.
  std::exception_ptr signalExceptionExternal(const std::string&);
};
}  // namespace tcp
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
  std::unique_ptr<transport::Pair>& getPair(int);
};
}  // namespace gloo
