#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {
// The virtual functions stand in Gloo's order: c10d's GlooStore is laid out by it.
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(30);

  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>&) = 0;
  virtual void multi_set(const std::vector<std::string>&, const std::vector<std::vector<char>>&) = 0;
  virtual void append(const std::string&, const std::vector<char>&) = 0;
  virtual int64_t add(const std::string&, int64_t) = 0;
};
}  // namespace gloo::rendezvous
