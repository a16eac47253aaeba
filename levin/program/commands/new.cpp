#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/program/command.h"
#include "levin/program/own_prefix.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCMakeLists = R"(cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Levin REQUIRED)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE Levin::levin)
if(COMMAND levin_precompile)
  levin_precompile(app)  # torch's headers are large: compile them once
endif()
)";

constexpr const char* kMain = R"(#include <levin/levin.h>
#include <torch/torch.h>

// Learns y = 3 x1 - 2 x2 + 1 from points that the program makes itself.
//   ./app                    one process
//   ./app --devices 2        two ranks on this machine
int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const int devices = static_cast<int>(args.get("devices", 1));
    const auto steps = args.get("steps", 200);
    args.check_all_used();

    levin::Fabric fabric({.devices = devices});
    fabric.launch(args);
    torch::manual_seed(fabric.global_rank());  // every rank makes points of its own

    torch::nn::Linear model(2, 1);
    auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 0.05}));
    const auto weight = torch::tensor({{3.0f}, {-2.0f}}, fabric.device());
    for (int64_t step = 1; step <= steps; ++step) {
      const auto x = torch::randn({64, 2}, fabric.device());
      const auto loss = torch::mse_loss(net(x), x.matmul(weight) + 1);
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      if (step % 50 == 0) fabric.print("step ", step, "  loss ", loss.item<float>());
    }
  });
}
)";

/// A word of a command line as a shell takes it back.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

void write(const fs::path& path, const char* text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  LEVIN_CHECK(file, "[levin new] \"", path.string(), "\" cannot be written: ", std::strerror(errno));
}

struct NewProject {
  std::string what;
  std::string folder = "app";

  void describe(Flags& flags) {
    flags.argument("app", what, "a program with a Fabric training loop: CMakeLists.txt and main.cpp", {"app"});
    flags.argument("FOLDER", folder, "where to write it [app]; existing files are never overwritten", {}, true);
  }

  int run() const {
    const fs::path into = folder;
    for (const char* name : {"CMakeLists.txt", "main.cpp"})
      LEVIN_CHECK(!fs::exists(into / name), "[levin new] \"", (into / name).string(),
                  "\" is there already; name another folder");
    std::error_code error;
    fs::create_directories(into, error);
    LEVIN_CHECK(!error, "[levin new] folder \"", folder, "\" cannot be made: ", error.message());
    write(into / "CMakeLists.txt", kCMakeLists);
    write(into / "main.cpp", kMain);
    print_next_steps(into);
    return 0;
  }

 private:
  static void print_next_steps(const fs::path& into) {
    const auto prefix = own_prefix();
    const auto place = shell_word(into.string()), build = shell_word((into / "build").string());
    const auto find = prefix.empty() ? std::string("-DCMAKE_PREFIX_PATH=PREFIX")
                                     : shell_word("-DCMAKE_PREFIX_PATH=" + prefix.string());
    fmt::print("Wrote {0}/CMakeLists.txt and {0}/main.cpp. Build and run{1}:\n", into.string(),
               prefix.empty() ? " (PREFIX is the folder that Levin is installed in, or its build folder)" : "");
    fmt::print("  cmake -S {} -B {} {}\n  cmake --build {}\n  {}\n", place, build, find, build,
               shell_word(((into.is_absolute() ? into : "." / into) / "build" / "app").string()));
  }
};

}  // namespace

Command new_command() {
  return make_command<NewProject>("new", "create a new project that builds and trains");
}

}  // namespace levin::cli
