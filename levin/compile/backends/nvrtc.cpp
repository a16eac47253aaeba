#include "levin/compile/backends/nvrtc.h"

#include <filesystem>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <dlfcn.h>

#include "levin/core/error.h"

namespace levin::compile {

using levin::detail::concat;

struct Nvrtc::Api {
  using Program = void*;
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, size_t*);
  int (*ptx)(Program, char*);
};

struct FoundNvrtc {
  Nvrtc nvrtc;
  Nvrtc::Api api{};
  std::string why;

  /// Beside LibTorch, where wheels have it: site-packages/nvidia/.
  static std::vector<std::string> places() {
    std::vector<std::string> names{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&c10::impl::GetAutogradMetaFactory), &info) && info.dli_fname) {
      const auto lib = std::filesystem::path(info.dli_fname).parent_path();
      const auto packages = lib.parent_path().parent_path();
      for (const auto& path :
           {lib / "libnvrtc.so.13", lib / "libnvrtc.so.12", packages / "nvidia/cu13/lib/libnvrtc.so.13",
            packages / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"})
        names.push_back(path.string());
    }
    names.emplace_back("/usr/local/cuda/lib64/libnvrtc.so");
    return names;
  }

  FoundNvrtc() {
    void* library = nullptr;
    for (const auto& name : places())
      if ((library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))) break;
    if (!library) {
      why = "libnvrtc is not there (of the CUDA toolkit, or of the wheel nvidia-cuda-nvrtc on LD_LIBRARY_PATH)";
      return;
    }
    const auto function = [&](auto& pointer, const char* name) {
      void* found = dlsym(library, name);
      if (!found && why.empty()) why = concat("libnvrtc has no ", name, "; one of CUDA 12 or later is needed");
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(found);
    };
    function(api.version, "nvrtcVersion");
    function(api.create, "nvrtcCreateProgram");
    function(api.destroy, "nvrtcDestroyProgram");
    function(api.compile, "nvrtcCompileProgram");
    function(api.log_size, "nvrtcGetProgramLogSize");
    function(api.log, "nvrtcGetProgramLog");
    function(api.cubin_size, "nvrtcGetCUBINSize");
    function(api.cubin, "nvrtcGetCUBIN");
    function(api.ptx_size, "nvrtcGetPTXSize");
    function(api.ptx, "nvrtcGetPTX");
    nvrtc.api_ = &api;
  }
};

const Nvrtc* Nvrtc::find(std::string& why) {
  static const FoundNvrtc found;  // stays loaded
  if (found.why.empty()) return &found.nvrtc;
  why = found.why;
  return nullptr;
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  api_->version(&major, &minor);
  return concat(major, ".", minor);
}

std::string Nvrtc::cubin(const std::string& source, const std::string& architecture) const {
  return compile(source, architecture, true);
}

std::string Nvrtc::ptx(const std::string& source, const std::string& architecture) const {
  return compile(source, architecture, false);
}

std::string Nvrtc::compile(const std::string& source, const std::string& architecture, bool machine_code) const {
  Api::Program program = nullptr;
  LEVIN_CHECK(api_->create(&program, source.c_str(), "group.cu", 0, nullptr, nullptr) == 0,
              "[compile] NVRTC has no program");
  const struct Destroy {
    const Api* api;
    Api::Program program;
    ~Destroy() { api->destroy(&program); }
  } destroy{api_, program};
  const auto option = concat("--gpu-architecture=", architecture);
  const char* options[] = {option.c_str(), "--std=c++17", "-default-device", "--restrict"};
  const int failed = api_->compile(program, 3, options);
  if (failed) {
    size_t size = 0;
    api_->log_size(program, &size);
    std::string log(size, ' ');
    api_->log(program, log.data());
    for (auto& c : log)
      if (c == '\n' || c == '\0') c = ' ';
    levin::detail::fail(concat("[compile] NVRTC cannot compile a group: ", log.substr(0, 800)));
  }
  size_t size = 0;
  (machine_code ? api_->cubin_size : api_->ptx_size)(program, &size);
  std::string code(size, '\0');
  (machine_code ? api_->cubin : api_->ptx)(program, code.data());
  LEVIN_CHECK(!code.empty(), "[compile] NVRTC made no code for ", architecture);
  return code;
}

}  // namespace levin::compile
