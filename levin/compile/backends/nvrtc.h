#pragma once

#include <string>

namespace levin::compile {

/// NVIDIA's compiler at run time (libnvrtc), loaded when it is needed. It needs no GPU.
class Nvrtc {
 public:
  /// Null where there is none; `why` then says what was looked for.
  static const Nvrtc* find(std::string& why);

  /// "13.0"
  std::string version() const;
  /// Machine code for an architecture as "sm_90a". Throws an Error with the compiler's first lines.
  std::string cubin(const std::string& source, const std::string& architecture) const;
  /// Assembly text of the virtual architecture ("compute_90a").
  std::string ptx(const std::string& source, const std::string& architecture) const;

 private:
  Nvrtc() = default;
  std::string compile(const std::string& source, const std::string& architecture, bool machine_code) const;

  struct Api;
  const Api* api_ = nullptr;
  friend struct FoundNvrtc;
};

}  // namespace levin::compile
