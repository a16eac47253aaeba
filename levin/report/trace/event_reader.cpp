#include "levin/report/trace/event_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/report/json_text.h"
#include "levin/report/trace/element_types.h"
#include "levin/report/trace/ties.h"

namespace levin::report {
namespace {

enum class Category {
  kOther,
  kOperator,
  kAnnotation,
  kDeviceAnnotation,
  kCall,
  kKernel,
  kMemcpy,
  kMemset,
  kMtia,
  kPython,
  kTrace,
  /// Known, and not counted: arrows, waits between streams, counters.
  kPassedOver
};

struct CategoryName {
  std::string_view name;
  Category category;
};
// Of Kineto, old and new, in lower case.
constexpr std::array kCategories{
    CategoryName{"cpu_op", Category::kOperator},
    CategoryName{"operator", Category::kOperator},
    CategoryName{"python", Category::kOperator},
    CategoryName{"user_annotation", Category::kAnnotation},
    CategoryName{"gpu_user_annotation", Category::kDeviceAnnotation},
    CategoryName{"cuda_runtime", Category::kCall},
    CategoryName{"cuda_driver", Category::kCall},
    CategoryName{"runtime", Category::kCall},
    CategoryName{"xpu_runtime", Category::kCall},
    CategoryName{"mtia_runtime", Category::kCall},
    CategoryName{"glow_runtime", Category::kCall},
    CategoryName{"privateuse1_runtime", Category::kCall},
    CategoryName{"kernel", Category::kKernel},
    CategoryName{"gpu_memcpy", Category::kMemcpy},
    CategoryName{"memcpy", Category::kMemcpy},
    CategoryName{"gpu_memset", Category::kMemset},
    CategoryName{"memset", Category::kMemset},
    CategoryName{"mtia_ccp_events", Category::kMtia},
    CategoryName{"python_function", Category::kPython},
    CategoryName{"trace", Category::kTrace},
    CategoryName{"cuda_sync", Category::kPassedOver},
    CategoryName{"overhead", Category::kPassedOver},
    CategoryName{"cuda_profiler_range", Category::kPassedOver},
    CategoryName{"", Category::kPassedOver},
};

Category category_of(std::string_view text) {
  std::array<char, 24> lower{};
  if (text.size() > lower.size()) return Category::kOther;
  std::transform(text.begin(), text.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const std::string_view name(lower.data(), text.size());
  for (const auto& row : kCategories) {
    if (row.name == name) return row.category;
  }
  return Category::kOther;
}

// Longer texts of arguments (shapes of hundreds of tensors) are kept up to here.
constexpr size_t kMostText = 2000;

uint32_t small_number(std::string_view value) {
  const auto number = integer_of(value);
  return number && *number >= 0 && *number < int64_t{kNone} ? static_cast<uint32_t>(*number) : kNone;
}

// c10::DeviceType: the CPU and its layouts (MKLDNN, IDEEP). All others are devices of their own: CUDA 1, HIP 6, ...
bool is_host_type(int64_t type) {
  return type == 0 || type == 2 || type == 5;
}

bool is_module_name(std::string_view name) {
  return name.starts_with("nn.Module: ") || name.starts_with("[pl][module]");
}

}  // namespace

HostKind kind_of(std::string_view name, bool is_operator) {
  if (name.starts_with("ProfilerStep#")) return HostKind::kStep;
  if (name.starts_with("enumerate(DataLoader)#") && name.ends_with(".__next__")) return HostKind::kDataLoader;
  if (name.starts_with("enumerate(DataPipe)#")) return HostKind::kDataLoader;
  if (name.starts_with("Optimizer.step")) return HostKind::kOptimizer;
  if (name.starts_with("nccl:") || name.starts_with("gloo:")) return HostKind::kCollective;
  if (is_module_name(name)) return HostKind::kModule;
  return is_operator ? HostKind::kOperator : HostKind::kAnnotation;
}

EventReader::Raw EventReader::raw_of(std::string_view text) {
  Raw raw;
  for (JsonMembers members(text); members.next();) {
    const auto key = members.key();
    const auto value = members.value();
    if (key == "ph") {
      const auto phase = unquoted(value);
      raw.phase = phase.size() == 1 ? phase[0] : 0;
    } else if (key == "name") {
      raw.name = value;
    } else if (key == "cat") {
      raw.category = unquoted(value);
    } else if (key == "pid") {
      raw.process = unquoted(value);
    } else if (key == "tid") {
      raw.thread = unquoted(value);
    } else if (key == "ts") {
      raw.time = value;
    } else if (key == "dur") {
      raw.duration = value;
    } else if (key == "args") {
      raw.arguments = value.starts_with('{') ? value : std::string_view();
    }
  }
  return raw;
}

void EventReader::event(std::string_view text) {
  const auto raw = raw_of(text);
  ++trace_.event_count;
  if (raw.phase == 'X') {
    read_span(raw);
  } else if (raw.phase == 'B') {
    begin_span(raw, text);
  } else if (raw.phase == 'E') {
    end_span(raw);
  } else if (raw.phase == 'i' && raw.name == "\"[memory]\"") {
    read_memory(raw);
  } else if (raw.phase == 'M') {
    read_label(raw);
  }
}

// Begins and ends pair up like brackets, on each thread.
void EventReader::begin_span(const Raw& raw, std::string_view text) {
  const auto start = time_of(raw.time);
  if (!start) {
    ++bad_times_;
    return;
  }
  begun_[track_of(raw)].push_back({std::string(text), *start});
}

void EventReader::end_span(const Raw& raw) {
  auto& open = begun_[track_of(raw)];
  const auto end = time_of(raw.time);
  if (open.empty() || !end) {
    ++unpaired_;
    return;
  }
  const auto begun = std::move(open.back());
  open.pop_back();
  auto whole = raw_of(begun.text);
  const auto duration = std::to_string(std::max<Ns>(*end - begun.start, 0) / 1000) + "." +
                        std::to_string(1000 + std::max<Ns>(*end - begun.start, 0) % 1000).substr(1);
  whole.duration = duration;
  if (whole.arguments.empty()) whole.arguments = raw.arguments;
  read_span(whole);
}

void EventReader::read_span(const Raw& raw) {
  const auto category = category_of(raw.category);
  if (category == Category::kPassedOver) return;
  if (category == Category::kOther) {
    const auto at = unknown_.find(raw.category);
    ++(at != unknown_.end() ? at->second : unknown_[std::string(raw.category)]);
    return;
  }
  if (category == Category::kPython && !is_module_name(unquoted(raw.name))) return;
  const auto span = span_of(raw);
  if (!span) return;
  switch (category) {
    case Category::kOperator:
      return read_host(raw, *span, kind_of(trace_.name(span->name), true));
    case Category::kAnnotation:
      read_host(raw, *span, kind_of(trace_.name(span->name), false));
      trace_.host.back().is_annotation = true;
      return;
    case Category::kPython:
      return read_host(raw, *span, HostKind::kModule);
    case Category::kCall:
      return read_call(raw, *span);
    case Category::kKernel:
      return read_device(raw, *span, DeviceKind::kKernel);
    case Category::kMemcpy:
      return read_device(raw, *span, DeviceKind::kMemcpy);
    case Category::kMemset:
      return read_device(raw, *span, DeviceKind::kMemset);
    case Category::kMtia:
      return read_mtia(raw, *span);
    case Category::kDeviceAnnotation:
      trace_.device_ranges.push_back({.start = span->start,
                                      .duration = span->duration,
                                      .name = span->name,
                                      .stream = span->track,
                                      .device = static_cast<int16_t>(std::min(small_number(raw.process), 9999u))});
      return;
    case Category::kTrace:
      if (unquoted(raw.name) == "PyTorch Profiler (0)") {
        has_record_ = true;
        trace_.record_start = span->start;
        trace_.record_end = span->start + span->duration;
      }
      return;
    case Category::kPassedOver:
    case Category::kOther:
      return;
  }
}

// Waits for an event and its notice are no work. Transfers have no name but in their arguments.
void EventReader::read_mtia(const Raw& raw, const Span& span) {
  trace_.device_kind = "MTIA";
  const auto& name = trace_.name(span.name);
  if (name == "event_wait" || name == "event_record") return;
  if (name != "dma_request") return read_device(raw, span, DeviceKind::kKernel);
  auto named = span;
  if (!raw.arguments.empty()) {
    for (JsonMembers members(raw.arguments); members.next();) {
      if (members.key() == "direction") named.name = trace_.names.add("dma_request " + text_of(members.value()));
    }
  }
  read_device(raw, named, DeviceKind::kMemcpy);
}

std::optional<EventReader::Span> EventReader::span_of(const Raw& raw) {
  const auto start = time_of(raw.time);
  const auto duration = time_of(raw.duration);
  if (!start || !duration || *duration < 0) {
    ++bad_times_;
    return std::nullopt;
  }
  return Span{.start = *start, .duration = *duration, .name = name_of(raw.name), .track = track_of(raw)};
}

void EventReader::cover(Ns from, Ns to) {
  trace_.start = is_covered_ ? std::min(trace_.start, from) : from;
  trace_.end = is_covered_ ? std::max(trace_.end, to) : to;
  is_covered_ = true;
}

void EventReader::read_host(const Raw& raw, const Span& span, HostKind kind) {
  HostSpan host{.start = span.start, .duration = span.duration, .name = span.name, .thread = span.track, .kind = kind};
  if (!raw.arguments.empty()) {
    for (JsonMembers members(raw.arguments); members.next();) {
      const auto key = members.key();
      if (key == "External id" || key == "external id") {
        host.external = small_number(members.value());
      } else if (key == "Input Dims" || key == "Input dims") {
        host.shapes = raw_name_of(members.value());
      } else if (key == "Input type") {
        host.types = raw_name_of(members.value());
      } else if (key == "Concrete Inputs") {
        host.values = raw_name_of(members.value());
      } else if (key == "Call stack") {
        host.stack = name_of(members.value().substr(0, kMostText));
      } else if (key == "Sequence number") {
        host.sequence = small_number(members.value());
      } else if (key == "Fwd thread id") {
        const auto id = small_number(members.value());
        host.is_backward = id != 0 && id != kNone;
      } else if (key == "Unit" && kind == HostKind::kModule) {
        host.name = trace_.names.add("nn.Module: " + text_of(members.value()));
      }
    }
  }
  cover(host.start, host.end());
  trace_.host.push_back(host);
}

void EventReader::read_call(const Raw& raw, const Span& span) {
  RuntimeCall call{.start = span.start, .duration = span.duration, .name = span.name, .thread = span.track};
  if (!raw.arguments.empty()) {
    for (JsonMembers members(raw.arguments); members.next();) {
      const auto key = members.key();
      if (key == "External id" || key == "external id") call.external = small_number(members.value());
      if (key == "correlation") call.correlation = small_number(members.value());
    }
  }
  cover(call.start, call.end());
  trace_.calls.push_back(call);
}

void EventReader::read_device(const Raw& raw, const Span& span, DeviceKind kind) {
  DeviceEvent event{
      .start = span.start, .duration = span.duration, .name = span.name, .stream = span.track, .kind = kind};
  KernelProperties properties;
  Message message;
  int64_t elements = -1;
  int element_bytes = 0;
  uint32_t device = small_number(raw.process);
  if (!raw.arguments.empty()) {
    for (JsonMembers members(raw.arguments); members.next();) {
      const auto key = members.key();
      const auto value = members.value();
      if (key == "External id" || key == "external id") {
        event.external = small_number(value);
      } else if (key == "correlation") {
        event.correlation = small_number(value);
      } else if (key == "device") {
        device = small_number(value);
      } else if (key == "bytes" || key == "Bytes" || key == "size") {
        event.bytes = integer_of(value).value_or(-1);
      } else if (key == "grid") {
        properties.grid = raw_name_of(value);
      } else if (key == "block") {
        properties.block = raw_name_of(value);
      } else if (key == "registers per thread") {
        properties.registers = integer_of(value).value_or(-1);
      } else if (key == "shared memory") {
        properties.shared_memory = integer_of(value).value_or(-1);
      } else if (key == "blocks per SM") {
        properties.blocks_per_sm = number_of(value).value_or(-1);
      } else if (key == "est. achieved occupancy %") {
        properties.occupancy = number_of(value).value_or(-1);
      } else if (key == "Collective name") {
        message.name = name_of(value);
      } else if (key == "In msg nelems") {
        elements = integer_of(value).value_or(-1);
      } else if (key == "dtype") {
        element_bytes = bytes_of_type(unquoted(value));
      } else if (key == "Unit") {
        event.unit = name_of(value);
      } else if (key == "Phase") {
        event.is_backward = text_of(value) == "backward";
      }
    }
  }
  event.device = device < 1024 ? static_cast<int16_t>(device) : int16_t{0};
  if (kind == DeviceKind::kKernel) event.properties = properties_of(properties);
  if (elements >= 0 && elements < int64_t{1} << 48 && element_bytes > 0) message.bytes = elements * element_bytes;
  if (message != Message{}) event.message = message_of(message);
  cover(event.start, event.end());
  trace_.device.push_back(event);
}

uint32_t EventReader::properties_of(const KernelProperties& properties) {
  scratch_.assign(reinterpret_cast<const char*>(&properties), sizeof properties);
  const auto [at, is_new] = properties_.emplace(scratch_, static_cast<uint32_t>(trace_.properties.size()));
  if (is_new) trace_.properties.push_back(properties);
  return at->second;
}

// The kernels of a collective mostly say the same as those before them.
uint32_t EventReader::message_of(const Message& message) {
  auto& known = trace_.messages;
  const size_t from = known.size() - std::min<size_t>(known.size(), 64);
  const auto found = std::find(known.begin() + static_cast<ptrdiff_t>(from), known.end(), message);
  if (found != known.end()) return static_cast<uint32_t>(found - known.begin());
  known.push_back(message);
  return static_cast<uint32_t>(known.size() - 1);
}

void EventReader::read_memory(const Raw& raw) {
  const auto time = time_of(raw.time);
  if (!time) {
    ++bad_times_;
    return;
  }
  MemoryEvent memory{.time = *time, .thread = track_of(raw)};
  int64_t type = 0, device = -1;
  if (!raw.arguments.empty()) {
    for (JsonMembers members(raw.arguments); members.next();) {
      const auto key = members.key();
      const auto number = integer_of(members.value());
      if (!number) continue;
      if (key == "Bytes") memory.bytes = *number;
      if (key == "Total Allocated") memory.allocated = *number;
      if (key == "Total Reserved") memory.reserved = *number;
      if (key == "Device Type") type = *number;
      if (key == "Device Id") device = *number;
      if (key == "Addr") {
        memory.address = static_cast<uint64_t>(*number);
        memory.has_address = true;
      }
    }
  }
  memory.device = !is_host_type(type) && device >= 0 && device < 1024 ? static_cast<int16_t>(device) : int16_t{-1};
  cover(memory.time, memory.time);
  trace_.memory.push_back(memory);
}

void EventReader::read_label(const Raw& raw) {
  if (unquoted(raw.name) != "thread_name" || raw.arguments.empty()) return;
  for (JsonMembers members(raw.arguments); members.next();) {
    if (members.key() == "name") trace_.tracks[track_of(raw)].name = text_of(members.value());
  }
}

uint32_t EventReader::name_of(std::string_view quoted) {
  if (quoted.find('\\') == std::string_view::npos) return trace_.names.add(unquoted(quoted));
  return trace_.names.add(text_of(quoted));
}

uint32_t EventReader::raw_name_of(std::string_view value) {
  if (value.size() <= kMostText) return trace_.names.add(value);
  return trace_.names.add(std::string(value.substr(0, kMostText)) + "...");
}

uint32_t EventReader::track_of(const Raw& raw) {
  scratch_.assign(raw.process).append(1, '\0').append(raw.thread);
  if (last_track_ != kNone && scratch_ == last_track_key_) return last_track_;
  const auto [at, is_new] = tracks_.emplace(scratch_, static_cast<uint32_t>(trace_.tracks.size()));
  if (is_new) trace_.tracks.push_back({.process = std::string(raw.process), .thread = std::string(raw.thread)});
  last_track_key_ = scratch_;
  return last_track_ = at->second;
}

void EventReader::member(std::string_view key, std::string_view text) {
  if (key == "deviceProperties" && text.starts_with('[')) read_devices(text);
  if (key == "distributedInfo" && text.starts_with('{')) read_distributed(text);
  if (key == "levin_memory" && text.starts_with('{')) read_predicted(text);
  if (key == "levin" && text.starts_with('{')) {
    for (JsonMembers members(text); members.next();)
      trace_.facts.emplace_back(std::string(members.key()), text_of(members.value()).substr(0, kMostText));
  }
  if (key == "Framework") trace_.framework = text_of(text);
  if (key.starts_with("hip_") || key.starts_with("roctracer_") || key.starts_with("rocprofiler_")) trace_.is_amd = true;
}

void EventReader::read_devices(std::string_view text) {
  for (JsonMembers devices(text); devices.next();) {
    if (!devices.value().starts_with('{')) continue;
    DeviceInfo info;
    for (JsonMembers members(devices.value()); members.next();) {
      const auto key = members.key();
      const auto number = integer_of(members.value()).value_or(-1);
      if (key == "id") info.id = number;
      if (key == "name") info.name = text_of(members.value());
      if (key == "totalGlobalMem") info.memory_bytes = number;
      if (key == "numSms") info.sm_count = number;
      if (key == "computeMajor") info.major = static_cast<int>(std::clamp<int64_t>(number, -1, 999));
      if (key == "computeMinor") info.minor = static_cast<int>(std::clamp<int64_t>(number, -1, 999));
    }
    trace_.devices.push_back(info);
  }
}

void EventReader::read_distributed(std::string_view text) {
  for (JsonMembers members(text); members.next();) {
    const auto key = members.key();
    if (key == "rank") trace_.rank = integer_of(members.value()).value_or(-1);
    if (key == "world_size") trace_.world_size = integer_of(members.value()).value_or(-1);
    if (key == "backend") trace_.backend = text_of(members.value());
  }
}

// {"peak_bytes": n, "parameters": n, ...}
void EventReader::read_predicted(std::string_view text) {
  for (JsonMembers members(text); members.next();) {
    const auto bytes = integer_of(members.value());
    if (!bytes || *bytes < 0) continue;
    if (members.key() == "peak_bytes") {
      trace_.predicted_peak = *bytes;
    } else {
      trace_.predicted_parts.emplace_back(std::string(members.key()), *bytes);
    }
  }
}

void EventReader::say_what_was_left_out() {
  if (bad_times_ > 0)
    trace_.warnings.push_back(levin::detail::concat(bad_times_, " events have no usable time and are left out"));
  for (const auto& [track, open] : begun_) unpaired_ += open.size();
  if (unpaired_ > 0)
    warn(levin::detail::concat(unpaired_, " spans have a beginning or an end (B, E) alone and are left out"));
  for (const auto& [category, count] : unknown_)
    warn(
        levin::detail::concat(count, " spans of the category \"", shown(category), "\", not known here, are left out"));
  if (!trace_.devices.empty() && !trace_.calls.empty() && trace_.device.empty())
    warn(
        "there are calls of the device's runtime but no kernels: the profiler lost them, or its library (CUPTI) is "
        "missing");
}

TraceEvents EventReader::finish() {
  std::stable_sort(trace_.host.begin(), trace_.host.end(), [](const HostSpan& a, const HostSpan& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.start != b.start ? a.start < b.start : a.duration > b.duration;
  });
  const auto by_start = [](const auto& a, const auto& b) { return a.start < b.start; };
  std::stable_sort(trace_.calls.begin(), trace_.calls.end(), by_start);
  std::stable_sort(trace_.device.begin(), trace_.device.end(), by_start);
  std::stable_sort(trace_.memory.begin(), trace_.memory.end(),
                   [](const MemoryEvent& a, const MemoryEvent& b) { return a.time < b.time; });
  tie_events(trace_);
  if (!has_record_) {
    trace_.record_start = trace_.start;
    trace_.record_end = trace_.end;
  }
  say_what_was_left_out();
  return std::move(trace_);
}

}  // namespace levin::report
