// Where in a run an exception came from.
#include <cstdio>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/utils/cpp_stacktraces.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/nn/failed_unit.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

// Of any rank: the others may only learn that this one has gone.
void print_error_line(int rank, const std::string& line) {
  const auto of_rank = rank > 0 ? concat("rank ", rank, ": ") : std::string();
  std::fprintf(stderr, "levin: %s%s\n", of_rank.c_str(), line.c_str());
}

/// Empty outside of hooks and steps.
std::string where(const LoopState& state) {
  const auto& place = state.place;
  if (!place.doing.what) return {};
  auto text = std::string(place.doing.what);
  if (place.doing.callback) text = concat(c10::demangle(typeid(*place.doing.callback).name()), ".", text);
  if (state.fitting)
    text += state.stage == Stage::kSanity ? ", sanity check" : concat(", epoch ", state.progress.epoch);
  if (!place.at) return text;
  text += concat(", batch ", place.at->batch_idx);
  if (place.dataloader_idx >= 0) text += concat(" of loader ", place.dataloader_idx);
  return text;
}

}  // namespace

std::exception_ptr located(const Run& run, std::string_view stage) {
  const auto thrown = std::current_exception();
  const auto place = where(run.state);
  if (place.empty()) return thrown;
  try {
    try {
      std::rethrow_exception(thrown);
    } catch (c10::Error& error) {
      auto unit = failed_unit(error, run.model.module);
      if (unit.empty() && !run.state.place.batch.empty()) {
        run.state.place.batch.each_tensor([&](const Tensor& tensor) { describe_input(unit, tensor); });
        if (!unit.empty()) unit = "batch " + unit;
      }
      if (torch::get_cpp_stacktraces_enabled()) print_error_line(run.fabric->global_rank(), error.what());
      const auto context = unit.empty() ? place : concat(place, ", ", unit);
      // Who frees memory and tries again must know it.
      if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) {
        set_context(error, concat("trainer.", stage, ": ", context));
        return thrown;
      }
      return std::make_exception_ptr(Error(concat("[trainer.", stage, "] ", context, ": ", first_line(error))));
    } catch (const Error& error) {
      // One of a class of its own (a signal) says all itself, and is caught by its class.
      if (typeid(error) != typeid(Error)) return thrown;
      return std::make_exception_ptr(Error(concat(error.what(), " (", place, ")")));
    } catch (const std::exception& error) {
      print_error_line(run.fabric->global_rank(), concat("[trainer.", stage, "] ", c10::demangle(typeid(error).name()),
                                                         " in ", place, ": ", one_line(error)));
    } catch (...) {
      print_error_line(run.fabric->global_rank(),
                       concat("[trainer.", stage, "] an exception of an unknown type in ", place));
    }
  } catch (...) {  // no memory for words: what was thrown is enough
  }
  return thrown;
}

}  // namespace levin::detail
