#include "levin/core/seed.h"

#include <charconv>
#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin {
namespace {

constexpr int64_t kLargestSeed = 4294967295;
constexpr const char* kVariables[] = {"LEVIN_GLOBAL_SEED", "PL_GLOBAL_SEED"};

std::optional<int64_t> seed_of_environment() {
  for (const char* variable : kVariables) {
    const char* text = std::getenv(variable);
    if (!text) continue;
    const std::string_view word(text);
    int64_t seed = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seed);
    LEVIN_CHECK(error == std::errc() && end == word.data() + word.size(), "[seed_everything] ", variable, " is \"",
                word, "\", a whole number from 0 to ", kLargestSeed, " is needed");
    return seed;
  }
  return std::nullopt;
}

const at::Generator& cpu_generator() {
  return at::detail::getDefaultCPUGenerator();
}

}  // namespace

int64_t seed_everything(std::optional<int64_t> seed, SeedOptions options) {
  if (!seed) seed = seed_of_environment();
  if (!seed) {
    seed = 0;
    if (options.verbose) log_warning("no seed was given, it is set to 0");
  }
  LEVIN_CHECK(*seed >= 0 && *seed <= kLargestSeed, "[seed_everything] seed ", *seed, " is out of range (0 to ",
              kLargestSeed, ")");
  if (options.verbose) log_info(fmt::format("seed set to {}", *seed));

  const auto text = std::to_string(*seed);
  for (const char* variable : kVariables) ::setenv(variable, text.c_str(), 1);
  ::setenv("PL_SEED_WORKERS", options.workers ? "1" : "0", 1);
  at::manual_seed(static_cast<uint64_t>(*seed));
  return *seed;
}

void reset_seed() {
  const auto seed = seed_of_environment();
  if (!seed) return;
  const char* workers = std::getenv("PL_SEED_WORKERS");
  seed_everything(seed, {.workers = workers && std::string_view(workers) == "1", .verbose = false});
}

RngState RngState::capture() {
  auto generator = cpu_generator();
  const std::lock_guard lock(generator.mutex());
  return {generator.get_state(), {}};
}

void RngState::restore() const {
  LEVIN_CHECK(cpu.defined(), "[rng_state.restore] nothing was captured or loaded");
  auto generator = cpu_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(cpu);
}

StateDict RngState::state_dict() const {
  StateDict state{{"cpu", cpu}};
  for (const auto& [name, tensor] : devices) state[name] = tensor;
  return state;
}

void RngState::load_state_dict(const StateDict& state) {
  RngState loaded;
  for (const auto& [name, value] : state) {
    if (name == "cpu")
      loaded.cpu = value.to_tensor();
    else
      loaded.devices.emplace_back(name, value.to_tensor());
  }
  LEVIN_CHECK(loaded.cpu.defined(), "[rng_state.load] the state of the CPU's generator (\"cpu\") is missing");
  *this = std::move(loaded);
}

IsolateRng::~IsolateRng() {
  auto generator = cpu_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state_.cpu);
}

}  // namespace levin
