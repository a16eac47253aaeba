#include "levin/profilers/trace_file.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/loggers/json.h"
#include "levin/profilers/graph_kernels.h"
#include "levin/profilers/stream_lanes.h"
#include "levin/profilers/trace_fields.h"

namespace levin::detail {
namespace {

constexpr std::string_view kGzip = ".gz";

/// A file that is compressed where its name says so, and that is there whole or not at all.
class TraceWriter {
 public:
  explicit TraceWriter(const std::filesystem::path& path) : path_(path), file_(path) {
    if (!path.string().ends_with(kGzip)) return;
    stream_ = std::make_unique<z_stream>();
    constexpr int kLevel = 4, kGzipFormat = 15 + 16, kMemory = 8;
    LEVIN_CHECK(deflateInit2(stream_.get(), kLevel, Z_DEFLATED, kGzipFormat, kMemory, Z_DEFAULT_STRATEGY) == Z_OK,
                "[profiler] cannot compress \"", path.string(), "\"");
  }
  ~TraceWriter() {
    if (stream_) deflateEnd(stream_.get());
  }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void write(std::string_view text) {
    gathered_ += text;
    if (gathered_.size() >= kBlock) flush();
  }
  void commit() {
    flush();
    if (stream_) deflate_all({}, Z_FINISH);
    file_.commit();
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 18;

  void flush() {
    if (stream_)
      deflate_all(gathered_, Z_NO_FLUSH);
    else
      file_.write(gathered_);
    gathered_.clear();
  }

  void deflate_all(std::string_view text, int flush) {
    stream_->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream_->avail_in = static_cast<uInt>(text.size());
    int status = Z_OK;
    do {
      stream_->next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_->avail_out = static_cast<uInt>(out_.size());
      status = deflate(stream_.get(), flush);
      LEVIN_CHECK(status != Z_STREAM_ERROR, "[profiler] cannot compress \"", path_.string(), "\"");
      file_.write(std::string_view(out_.data(), out_.size() - stream_->avail_out));
    } while (stream_->avail_out == 0 && status != Z_STREAM_END);
  }

  std::filesystem::path path_;
  AtomicFile file_;
  std::unique_ptr<z_stream> stream_;
  std::string gathered_;
  std::vector<char> out_ = std::vector<char>(size_t{1} << 16);
};

/// The lines of an event: Kineto writes names, times, `"args": {`, and what is in them.
struct EventLines {
  std::string names, times, args, values;
};

/// Gives spans of units the form of Python's modules.
class ForwardUnits {
 public:
  void rewrite(EventLines& event) {
    const std::string name(trace_field(event.names, "name"));
    UnitSpanName unit;
    if (!UnitSpanName::parse(name, unit)) return;
    event.names.replace(event.names.find(name), name.size(), "nn.Module: " + unit.module);
    event.args += fmt::format("\"Unit\": \"{}\", \"Phase\": \"forward\", ", unit.path);
    constexpr std::string_view kAnnotation = "\"cat\": \"user_annotation\"";
    const auto at = event.names.find(kAnnotation);
    if (at == std::string::npos) return;  // the copy on the device's timeline
    event.names.replace(at, kAnnotation.size(), "\"cat\": \"python_function\"");
    event.args += python_ids(unit.path, event);
  }

 private:
  struct Open {
    int64_t id;
    int64_t end;
  };

  std::string python_ids(const std::string& path, const EventLines& event) {
    const int64_t start = trace_time(trace_field(event.times, "ts"));
    const int64_t end = start + trace_time(trace_field(event.times, "dur"));
    auto& open = open_[std::string(trace_field(event.names, "tid"))];
    while (!open.empty() && open.back().end <= start) open.pop_back();
    const auto parent = open.empty() ? std::string("null") : std::to_string(open.back().id);
    open.push_back({++events_, end});
    const auto id = modules_.try_emplace(path, static_cast<int64_t>(modules_.size())).first->second;
    return fmt::format("\"Python id\": {}, \"Python parent id\": {}, \"Python module id\": {}, ", events_, parent, id);
  }

  std::map<std::string, std::vector<Open>> open_;
  std::map<std::string, int64_t> modules_;
  int64_t events_ = 0;
};

/// Spans around the operators of backward that belong to a unit, one inside the other as the units are.
class BackwardUnits {
 public:
  explicit BackwardUnits(const AllUnitCalls& units) : calls_(units) {
    for (const auto& calls : units)
      for (const auto& unit : calls->units()) by_path_.emplace(unit.path, &unit);
  }

  void add(const EventLines& event) {
    const auto number = trace_field(event.values, "Sequence number");
    if (number.empty()) return;  // it accumulates a gradient
    const auto thread = static_cast<uint64_t>(trace_number(trace_field(event.values, "Fwd thread id")));
    const auto node = static_cast<int64_t>(trace_number(number));
    const int64_t start = trace_time(trace_field(event.times, "ts"));
    nodes_[std::pair(std::string(trace_field(event.names, "pid")), std::string(trace_field(event.names, "tid")))]
        .push_back({start, start + trace_time(trace_field(event.times, "dur")), node, find_unit(calls_, thread, node)});
  }

  /// The events, each with a comma behind it.
  std::string text() {
    std::string all;
    for (auto& [place, nodes] : nodes_) {
      std::stable_sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.start < b.start; });
      spans_of(place, nodes, all);
    }
    return all;
  }

 private:
  struct Node {
    int64_t start, end, number;
    const UnitSpanName* unit;
  };
  struct Open {
    const UnitSpanName* unit;
    int64_t start;
  };
  struct Span {
    const UnitSpanName* unit;
    int64_t start, end;
  };
  using Place = std::pair<std::string, std::string>;

  /// The units around a unit, the outermost first, and itself.
  std::vector<const UnitSpanName*> chain_of(const UnitSpanName* unit) const {
    std::vector<const UnitSpanName*> chain;
    if (!unit) return chain;
    for (auto dot = unit->path.find('.'); dot != std::string::npos; dot = unit->path.find('.', dot + 1))
      if (const auto found = by_path_.find(unit->path.substr(0, dot)); found != by_path_.end())
        chain.push_back(found->second);
    chain.push_back(unit);
    return chain;
  }

  void spans_of(const Place& place, const std::vector<Node>& nodes, std::string& into) const {
    std::vector<Open> open;
    int64_t end = 0, highest = -1;
    std::vector<Span> spans;
    const auto close = [&](size_t kept) {
      for (; open.size() > kept; open.pop_back()) spans.push_back({open.back().unit, open.back().start, end});
    };
    for (const auto& node : nodes) {
      if (node.start < end) continue;  // inside another one, which made it: a checkpoint computes again
      // Numbers grow in forward and fall in backward: a higher one is of the next backward.
      if (node.number > highest) close(0), highest = node.number;
      const auto chain = chain_of(node.unit);
      size_t same = 0;
      while (same < std::min(open.size(), chain.size()) && open[same].unit == chain[same]) ++same;
      close(same);
      for (; same < chain.size(); ++same) open.push_back({chain[same], node.start});
      end = node.end;
    }
    close(0);
    // Of those that begin together the outermost stands first.
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return std::tuple(a.start, -a.end, a.unit->path.size()) < std::tuple(b.start, -b.end, b.unit->path.size());
    });
    for (const auto& [unit, start, stop] : spans) into += text_of(place, *unit, start, stop);
  }

  static std::string text_of(const Place& place, const UnitSpanName& unit, int64_t start, int64_t end) {
    const int64_t length = end - start;
    return fmt::format(
        "  {{\n    \"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"nn.Module backward: {}\", \"pid\": {}, "
        "\"tid\": {},\n    \"ts\": {}.{:03}, \"dur\": {}.{:03},\n    \"args\": {{\n      \"Unit\": \"{}\", \"Phase\": "
        "\"backward\"\n    }}\n  }},\n",
        unit.module, place.first, place.second, start / 1000, start % 1000, length / 1000, length % 1000, unit.path);
  }

  const AllUnitCalls& calls_;
  std::map<std::string, const UnitSpanName*> by_path_;
  std::map<Place, std::vector<Node>> nodes_;
};

class TraceRewriter {
 public:
  TraceRewriter(const AllUnitCalls& units, const EventStacks& stacks, const GraphKernels* graphs, std::string kineto,
                std::string path, TraceWriter& to)
      : backward_(units),
        stacks_(stacks),
        graphs_(graphs),
        kineto_(std::move(kineto)),
        path_(std::move(path)),
        to_(to) {}

  void run(std::istream& from) {
    EventLines event;
    while (std::getline(from, event.names)) {
      // Most lines are of no interest, and their beginning says so.
      const auto from_word = event.names.find_first_not_of(' ');
      const auto word = std::string_view(event.names).substr(std::min(from_word, event.names.size()));
      const bool is_span = word.starts_with("\"ph\": \"X\"");
      const bool of_unit = is_span && contains(event.names, "\"name\": \"nn.Module: ");
      const bool of_backward = is_span && contains(event.names, "\"name\": \"autograd::engine::evaluate_function: ");
      const bool has_stack = is_span && !stacks_.empty() && contains(event.names, "\"cat\": \"cpu_op\"");
      if ((of_unit || of_backward || has_stack) && std::getline(from, event.times) && std::getline(from, event.args) &&
          std::getline(from, event.values)) {
        if (has_stack) add_stack(event);
        if (of_unit) forward_.rewrite(event);
        if (of_backward) backward_.add(event);
        if (StreamLanes::is_device_span(event.names)) lanes_.place(event.names, event.times);
        for (const auto* part : {&event.names, &event.times, &event.args, &event.values}) line(*part);
        continue;
      }
      if (is_span && StreamLanes::is_device_span(event.names) && std::getline(from, event.times)) {
        lanes_.place(event.names, event.times);
        line(event.names);
        line(event.times);
        if (!graphs_ || !contains(event.names, kKernelLine)) continue;
        if (const auto more = graphs_->arguments(kernels_++); !more.empty() && std::getline(from, event.args)) {
          line(event.args);
          line("      " + more);
        }
        continue;
      }
      if (word.starts_with("\"ph\": \"f\"")) lanes_.place_arrow(event.names);
      // Kineto's last event: what is added stands before it. The line before opened it.
      if (word.starts_with("\"name\": \"Record Window End\"")) to_.write(backward_.text() + lanes_.text());
      if (word.starts_with("\"traceName\""))
        if (const auto at = event.names.find(kineto_); at != std::string::npos)
          event.names.replace(at, kineto_.size(), path_);
      line(event.names);
    }
    to_.write(held_);
  }

 private:
  // In the order of torch's: the innermost frame first.
  void add_stack(EventLines& event) const {
    const auto& frames = stacks_.of(static_cast<uint64_t>(trace_number(trace_field(event.values, "External id"))));
    if (frames.empty() || !contains(event.args, "\"args\": {")) return;
    event.args += fmt::format("\"Call stack\": {}, ", json_string(fmt::format("{}", fmt::join(frames, ";"))));
  }

  static bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }
  /// Written when the next one comes.
  void line(const std::string& text) {
    to_.write(held_);
    held_.assign(text).push_back('\n');
  }

  ForwardUnits forward_;
  BackwardUnits backward_;
  StreamLanes lanes_;
  const EventStacks& stacks_;
  /// Null where no graph was replayed.
  const GraphKernels* graphs_;
  int64_t kernels_ = 0;
  std::string kineto_, path_, held_;
  TraceWriter& to_;
};

}  // namespace

void write_trace(torch::autograd::profiler::ProfilerResult& result, const AllUnitCalls& units,
                 const EventStacks& stacks, const std::filesystem::path& path) {
  make_folder(path.parent_path());
  StagedFiles staged;  // never given its name: it goes with this object
  const auto kineto = staged.add(path.string() + ".kineto");
  result.save(kineto.string());
  std::ifstream from(kineto, std::ios::binary);
  LEVIN_CHECK(from, "[profiler] the trace could not be written to \"", path.string(), "\"");
  std::optional<GraphKernels> graphs;
  if (has_graph_units()) {
    std::ifstream first(kineto, std::ios::binary);
    graphs.emplace(first);
  }
  TraceWriter to(path);
  TraceRewriter(units, stacks, graphs && !graphs->empty() ? &*graphs : nullptr, kineto.string(), path.string(), to)
      .run(from);
  to.commit();
}

std::string trace_file_name(const std::string& worker, bool gzip) {
  static std::atomic<int64_t> last = 0;
  auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  int64_t before = last.load(), time = 0;
  do {
    time = std::max<int64_t>(now.count(), before + 1);
  } while (!last.compare_exchange_weak(before, time));
  return fmt::format("{}.{}.pt.trace.json{}", worker, time, gzip ? kGzip : "");
}

}  // namespace levin::detail
