#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace levin {

/// Which devices of a node a run asks for, as the user wrote it: `4`, `-1` (all), `{0, 2}`, `"auto"`, `"0,2"`.
class Devices {
 public:
  Devices() : text_("auto") {}
  Devices(const char* text) : text_(text) {}
  Devices(std::string text) : text_(std::move(text)) {}
  template <std::integral I>
  requires(!std::same_as<I, bool>) Devices(I count) : text_(std::to_string(count)) {}
  Devices(std::initializer_list<int> ids) : Devices(std::vector<int>(ids)) {}
  Devices(const std::vector<int>& ids);

  const std::string& text() const { return text_; }
  bool is_list() const { return is_list_; }

 private:
  std::string text_;
  bool is_list_ = false;
};

/// One entry per process of a node: the device it uses. `available` is the number of devices of that kind; the CPU
/// takes any number of processes. Errors: zero or a repeated, absent or malformed device, each with what there is.
std::vector<c10::Device> resolve_devices(const Devices& asked, c10::DeviceType type, int available);

}  // namespace levin
