#pragma once

#include <array>
#include <string>
#include <vector>

#include "levin/report/views/steps.h"

namespace levin::report {

/// Why no device works at a moment of a step.
enum class IdleCause { kDataLoader, kCheckpoint, kCommunication, kSync, kHost, kLaunch, kOther };
inline constexpr size_t kIdleCauses = 7;
/// "dataloader", and the words for people.
const char* id_of(IdleCause cause);
const char* words_of(IdleCause cause);

/// The time of the steps in which no device works. The causes add up to it.
struct IdleView {
  Ns total = 0, of = 0;
  std::array<Ns, kIdleCauses> causes{};

  Ns operator[](IdleCause cause) const { return causes[static_cast<size_t>(cause)]; }
};

IdleView view_idle(const TraceEvents& trace, const StepView& steps);

/// Spans in which the program saves one: save_checkpoint, or the callback ModelCheckpoint.
bool is_checkpoint(const std::string& name);
Ranges checkpoint_ranges(const TraceEvents& trace);

/// A piece of the longest chain of work of a step.
struct PathSegment {
  std::string name;
  /// kernel, communication, memcpy, memset, launch, dataloader, op, host.
  std::string kind;
  Ns start = 0, duration = 0;
};

struct CriticalPath {
  std::string step;
  Ns total = 0;
  std::vector<PathSegment> segments;
};

/// Of the step of medium length: from its end back over what each piece had to wait for. Without device work, the
/// thread of the step. The pieces have no gaps and add up to the step.
CriticalPath find_critical_path(const TraceEvents& trace, const StepView& steps);

}  // namespace levin::report
