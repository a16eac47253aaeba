// Where in a run an exception came from.
#include <cstdio>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/utils/cpp_stacktraces.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/nn/failed_unit.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

// Of any rank: the others may only learn that this one has gone.
void print_error_line(int rank, const std::string& line) {
  const auto of_rank = rank > 0 ? concat("rank ", rank, ": ") : std::string();
  std::fprintf(stderr, "levin: %s%s\n", of_rank.c_str(), line.c_str());
}

}  // namespace

std::string Run::where() const {
  if (!doing_.what) return {};
  auto text = std::string(doing_.what);
  if (doing_.callback) text = concat(c10::demangle(typeid(*doing_.callback).name()), ".", text);
  if (fitting_) text += stage_ == Stage::kSanity ? ", sanity check" : concat(", epoch ", progress_.epoch);
  if (!at_) return text;
  text += concat(", batch ", at_->batch_idx);
  if (dataloader_idx_ >= 0) text += concat(" of loader ", dataloader_idx_);
  return text;
}

std::exception_ptr Run::located(std::string_view stage) const {
  const auto thrown = std::current_exception();
  const auto place = where();
  if (place.empty()) return thrown;
  try {
    try {
      std::rethrow_exception(thrown);
    } catch (c10::Error& error) {
      auto unit = failed_unit(error, module_);
      if (unit.empty() && !batch_.empty()) {
        batch_.each_tensor([&](const Tensor& tensor) { describe_input(unit, tensor); });
        if (!unit.empty()) unit = "batch " + unit;
      }
      if (torch::get_cpp_stacktraces_enabled()) print_error_line(fabric_->global_rank(), error.what());
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
      print_error_line(fabric_->global_rank(), concat("[trainer.", stage, "] ", c10::demangle(typeid(error).name()),
                                                      " in ", place, ": ", one_line(error)));
    } catch (...) {
      print_error_line(fabric_->global_rank(),
                       concat("[trainer.", stage, "] an exception of an unknown type in ", place));
    }
  } catch (...) {  // no memory for words: what was thrown is enough
  }
  return thrown;
}

}  // namespace levin::detail
