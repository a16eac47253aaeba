#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// Makes TraceEvents of the texts of events. finish() ties device work to the calls that launched it, and these to
/// operators (ties.h).
class EventReader {
 public:
  /// An event; what is no JSON is an Error without the name of the file.
  void event(std::string_view text);
  /// What the file itself is to be warned about.
  void warn(std::string line) { trace_.warnings.push_back(std::move(line)); }
  /// Another member of the file: devices, ranks.
  void member(std::string_view key, std::string_view text);
  TraceEvents finish();

 private:
  struct Raw {
    std::string_view name, category, process, thread, time, duration, arguments;
    char phase = 0;
  };
  /// A span that has begun (phase B) and not ended yet (phase E).
  struct Begun {
    std::string text;
    Ns start = 0;
  };
  struct Span {
    Ns start = 0, duration = 0;
    uint32_t name = 0, track = 0;
  };

  static Raw raw_of(std::string_view text);
  void read_span(const Raw& raw);
  void begin_span(const Raw& raw, std::string_view text);
  void end_span(const Raw& raw);
  void read_memory(const Raw& raw);
  void read_label(const Raw& raw);
  void read_host(const Raw& raw, const Span& span, HostKind kind);
  void read_call(const Raw& raw, const Span& span);
  void read_device(const Raw& raw, const Span& span, DeviceKind kind);
  void read_devices(std::string_view text);
  void read_distributed(std::string_view text);
  void read_predicted(std::string_view text);
  void read_mtia(const Raw& raw, const Span& span);
  std::optional<Span> span_of(const Raw& raw);
  uint32_t name_of(std::string_view quoted);
  uint32_t raw_name_of(std::string_view value);
  uint32_t track_of(const Raw& raw);
  uint32_t properties_of(const KernelProperties& properties);
  uint32_t message_of(const Message& message);
  void cover(Ns from, Ns to);
  void say_what_was_left_out();

  TraceEvents trace_;
  std::unordered_map<std::string, uint32_t> tracks_;
  std::unordered_map<std::string, uint32_t> properties_;
  std::string last_track_key_, scratch_;
  uint32_t last_track_ = kNone;
  std::unordered_map<uint32_t, std::vector<Begun>> begun_;  // by track
  std::map<std::string, uint64_t, std::less<>> unknown_;    // events by category
  uint64_t bad_times_ = 0, unpaired_ = 0;
  bool has_record_ = false, is_covered_ = false;
};

/// What a span with this name is, on the host.
HostKind kind_of(std::string_view name, bool is_operator);

}  // namespace levin::report
