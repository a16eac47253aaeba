// fuzz-sources: levin/io/weights/pickle.cpp levin/io/weights/pickle_machine.cpp levin/core/[ew][ro]r*.cpp
// fuzz-seeds: tests/io/fixtures/weights/*.pkl
//
// Any bytes given to the pickle reader make a value or a one-line Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "levin/core/error.h"
#include "levin/io/weights/pickle.h"

namespace {

using levin::pickle::Kind;
using levin::pickle::Value;

/// Takes state and has memory, as tensors and arrays do.
struct Stateful : levin::pickle::Object {
  std::string_view what() const override { return "an object"; }
  void build(const Value& state) override { held = state.is(Kind::bytes) ? state.text().size() : 0; }
  size_t bytes() const override { return held; }
  size_t held = 0;
};

/// The result is a tree: a walk over all of it ends.
size_t walk(const Value& value) {
  size_t count = 1;
  if (value.is(Kind::dict)) {
    for (const auto& [key, item] : value.pairs()) count += walk(item);
  } else if (value.is(Kind::list) || value.is(Kind::tuple) || value.is(Kind::set)) {
    for (const auto& item : value.items()) count += walk(item);
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  levin::pickle::Options options{.globals = levin::pickle::basic_globals()};
  options.globals["torch.float32"] = {};
  options.globals["numpy.ndarray"] = [](std::span<const Value>) { return Value(std::make_shared<Stateful>()); };
  options.globals["argparse.Namespace"] = options.globals["numpy.ndarray"];
  options.persistent = [](const Value& id) { return id; };
  options.limits = {.values = 20'000, .stack = 5'000};
  try {
    const auto value = levin::pickle::load(std::as_bytes(std::span(data, size)), options, "fuzz");
    if (walk(value) > options.limits.values) std::abort();
  } catch (const levin::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
