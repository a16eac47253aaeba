#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "levin/report/report.h"
#include "levin/report/trace/sources.h"
#include "levin/report/views/compare.h"

namespace levin::report {
namespace {

using Json = nlohmann::ordered_json;

double us(double ns) {
  return ns / 1e3;
}
double us(Ns ns) {
  return static_cast<double>(ns) / 1e3;
}
double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}
double percent(Ns part, Ns whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}
Json or_null(int64_t value) {
  return value < 0 ? Json(nullptr) : Json(value);
}
Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}
Json percent_or_null(const std::optional<double>& share) {
  return share ? Json(100 * *share) : Json(nullptr);
}

constexpr size_t kMostRows = 2000, kMostSegments = 400;

/// The views of one trace. Times are moved to the first event.
class TraceJson {
 public:
  explicit TraceJson(const TraceReport& report) : report_(report), trace_(report.events) {}

  Json all() const {
    Json out = origin();
    out["facts"] = Json::array();
    for (const auto& [key, value] : trace_.facts) out["facts"].push_back({{"key", key}, {"value", value}});
    out["overview"] = overview();
    out["steps"] = steps();
    out["gpu_summary"] = gpus();
    out["tensor_cores"] = tensor_cores();
    out["recommendations"] = recommendations();
    out["operators"] = operators(report_.operators, false);
    out["operators_by_shape"] = operators(report_.operators_by_shape, true);
    out["kernels"] = kernels(report_.kernels, false);
    out["kernels_by_properties"] = kernels(report_.kernels_by_properties, true);
    out["transfers"] = transfers();
    out["memory"] = memory();
    out["modules"] = modules();
    out["trace"] = lanes();
    out["roofline"] = roofline();
    out["idle"] = idle();
    out["launches"] = launches();
    out["annotations"] = annotations();
    out["critical_path"] = critical_path();
    out["mfu"] = mfu();
    out["what_if"] = what_if();
    out["sources"] = sources();
    return out;
  }

 private:
  double at(Ns time) const { return us(time - trace_.start); }
  const std::string& name(uint32_t number) const { return trace_.name(number); }

  Json origin() const {
    return {{"name", report_.name},
            {"file", report_.file},
            {"file_bytes", report_.file_bytes},
            {"run", report_.run},
            {"worker", report_.worker},
            {"rank", report_.rank},
            {"world_size", trace_.world_size > 0 ? trace_.world_size : 1},
            {"span", report_.span},
            {"events", trace_.event_count},
            {"start_us", us(trace_.start)},
            {"duration_us", us(trace_.end - trace_.start)},
            {"has_device", report_.has_device},
            {"warnings", report_.warnings}};
  }

  Json overview() const {
    const auto& steps = report_.steps;
    Json categories = Json::array();
    for (size_t i = 0; i < kParts; ++i)
      categories.push_back({{"name", to_string(static_cast<Part>(i))},
                            {"average_us", us(steps.average[i])},
                            {"percent", percent(steps.average[i], steps.average_total)}});
    return {{"steps", steps.steps.size()}, {"average_us", us(steps.average_total)}, {"categories", categories}};
  }

  Json steps() const {
    constexpr std::array kKeys{"kernel_us",  "memcpy_us",     "memset_us",   "communication_us",
                               "runtime_us", "dataloader_us", "cpu_exec_us", "other_us"};
    Json out = Json::array();
    for (const auto& step : report_.steps.steps) {
      Json row{
          {"name", step.name}, {"start_us", at(step.start)}, {"end_us", at(step.end)}, {"total_us", us(step.total())}};
      for (size_t i = 0; i < kParts; ++i) row[kKeys[i]] = us(step.parts[i]);
      row["device_events"] = step.device_events;
      out.push_back(std::move(row));
    }
    return out;
  }

  Json gpus() const {
    Json out = Json::array();
    for (const auto& gpu : report_.gpus) {
      Json curve{{"start_us", at(gpu.curve_start)}, {"bucket_us", us(gpu.bucket)}, {"percent", Json::array()}};
      for (const double share : gpu.curve) curve["percent"].push_back(100 * share);
      const auto& info = gpu.info;
      Json capability = nullptr;
      if (info.major >= 0) capability = std::to_string(info.major) + "." + std::to_string(std::max(info.minor, 0));
      out.push_back({{"device", gpu.device},
                     {"kind", trace_.device_kind},
                     {"name", info.name.empty() ? Json(nullptr) : Json(info.name)},
                     {"memory_bytes", info.memory_bytes > 0 ? Json(info.memory_bytes) : Json(nullptr)},
                     {"compute_capability", capability},
                     {"sm_count", info.sm_count > 0 ? Json(info.sm_count) : Json(nullptr)},
                     {"utilization_percent", 100 * gpu.utilization},
                     {"sm_efficiency_percent", percent_or_null(gpu.sm_efficiency)},
                     {"achieved_occupancy_percent", percent_or_null(gpu.occupancy)},
                     {"tensor_core_time_percent", percent_or_null(gpu.tensor_core_time)},
                     {"peak_allocated_bytes", or_null(gpu.peak_allocated)},
                     {"utilization_curve", std::move(curve)}});
    }
    return out;
  }

  Json tensor_cores() const {
    const auto& times = report_.tensor_cores;
    if (times.all == 0) return nullptr;
    return {{"time_percent", percent(times.of_operators_used, times.of_operators)},
            {"eligible_percent", percent(times.of_eligible, times.of_operators)},
            {"kernel_time_percent", percent(times.all_used, times.all)},
            {"tb_compat_time_percent", percent(times.of_operators_used_compat, times.of_operators)},
            {"tb_compat_kernel_time_percent", percent(times.all_used_compat, times.all)}};
  }

  Json recommendations() const {
    Json out = Json::array();
    for (const auto& row : report_.recommendations)
      out.push_back({{"id", row.id},
                     {"title", row.title},
                     {"evidence", row.evidence},
                     {"option", row.option},
                     {"cost_ms", row.cost_ms ? Json(*row.cost_ms) : Json(nullptr)}});
    return out;
  }

  Json operators(const std::vector<OperatorRow>& rows, bool by_shape) const {
    Json out = Json::array();
    for (const auto& row : rows) {
      if (out.size() == kMostRows) break;
      Json item{{"name", name(row.name)}};
      if (by_shape) item["input_shape"] = row.shapes == 0 ? std::string("[]") : name(row.shapes);
      item.update({{"calls", row.calls},
                   {"device_self_us", us(row.device_self)},
                   {"device_total_us", us(row.device_total)},
                   {"host_self_us", us(row.host_self)},
                   {"host_total_us", us(row.host_total)},
                   {"tensor_cores_eligible", row.could_use_tensor_cores},
                   {"tensor_cores_self_percent", percent(row.tensor_core_self, row.device_self)},
                   {"tensor_cores_total_percent", percent(row.tensor_core_total, row.device_total)},
                   {"flops", row.flops ? Json(*row.flops) : Json(nullptr)},
                   {"call_stack", row.stack == 0 ? Json(nullptr) : Json(name(row.stack))}});
      out.push_back(std::move(item));
    }
    return out;
  }

  Json kernels(const std::vector<KernelRow>& rows, bool by_properties) const {
    Json out = Json::array();
    for (const auto& row : rows) {
      if (out.size() == kMostRows) break;
      Json item{{"name", name(row.name)}, {"kind", row.is_communication ? "communication" : "compute"}};
      if (by_properties)
        item.update({{"operator", row.operator_name == kNone ? std::string("CallTreeRoot") : name(row.operator_name)},
                     {"grid", name(row.properties.grid)},
                     {"block", name(row.properties.block)},
                     {"registers_per_thread", or_null(row.properties.registers)},
                     {"shared_memory_bytes", or_null(row.properties.shared_memory)},
                     {"operator_tensor_cores_eligible", row.operator_could_use_tensor_cores}});
      item.update({{"tensor_cores", row.uses_tensor_cores},
                   {"calls", row.calls},
                   {"total_us", us(row.total)},
                   {"mean_us", us(static_cast<double>(row.total) / static_cast<double>(row.calls))},
                   {"max_us", us(row.max)},
                   {"min_us", us(row.min)},
                   {"mean_blocks_per_sm", row.blocks_per_sm},
                   {"mean_occupancy_percent", row.occupancy}});
      out.push_back(std::move(item));
    }
    return out;
  }

  Json transfers() const {
    Json out = Json::array();
    for (const auto& row : report_.transfers)
      out.push_back({{"name", name(row.name)},
                     {"kind", row.kind == DeviceKind::kMemcpy ? "memcpy" : "memset"},
                     {"calls", row.calls},
                     {"total_us", us(row.total)},
                     {"bytes", row.bytes},
                     {"gbps", row.total > 0 ? static_cast<double>(row.bytes) / static_cast<double>(row.total) : 0}});
    return out;
  }

  Json memory_device(const MemoryDevice& device) const {
    Json times = Json::array(), allocated = Json::array(), reserved = Json::array();
    for (const auto& point : device.curve) {
      times.push_back(at(point.time));
      allocated.push_back(point.allocated);
      reserved.push_back(point.reserved);
    }
    Json events = Json::array();
    for (const auto& block : device.blocks) {
      const bool is_whole = block.allocated && block.released;
      events.push_back({{"operator", block.operator_name},
                        {"size_bytes", block.bytes},
                        {"allocation_us", block.allocated ? Json(at(*block.allocated)) : Json(nullptr)},
                        {"release_us", block.released ? Json(at(*block.released)) : Json(nullptr)},
                        {"duration_us", is_whole ? Json(us(*block.released - *block.allocated)) : Json(nullptr)}});
    }
    Json statistics = Json::array();
    for (const auto& row : device.statistics)
      statistics.push_back({{"operator", name(row.name)},
                            {"calls", row.calls},
                            {"size_increase_bytes", row.increase},
                            {"self_size_increase_bytes", row.self_increase},
                            {"allocation_count", row.count},
                            {"self_allocation_count", row.self_count},
                            {"allocation_size_bytes", row.size},
                            {"self_allocation_size_bytes", row.self_size}});
    int64_t capacity = 0;
    for (const auto& info : trace_.devices) {
      if (device.device >= 0 && info.id == device.device) capacity = info.memory_bytes;
    }
    return {{"device", device_name(device.device)},
            {"peak_allocated_bytes", or_null(device.peak_allocated)},
            {"peak_reserved_bytes", or_null(device.peak_reserved)},
            {"peak_us", device.peak_allocated < 0 ? Json(nullptr) : Json(at(device.peak_time))},
            {"capacity_bytes", capacity > 0 ? Json(capacity) : Json(nullptr)},
            {"curve", {{"time_us", times}, {"allocated_bytes", allocated}, {"reserved_bytes", reserved}}},
            {"events", events},
            {"events_left_out", device.left_out},
            {"statistics", statistics}};
  }

  Json memory() const {
    Json devices = Json::array(), units = Json::array();
    for (const auto& device : report_.memory) devices.push_back(memory_device(device));
    for (const auto& row : report_.modules) {
      if (row.allocated > 0)
        units.push_back({{"name", row.name}, {"allocated_bytes", row.allocated}, {"increase_bytes", row.increase}});
    }
    Json predicted = nullptr;
    if (trace_.predicted_peak >= 0) {
      Json parts = Json::array();
      for (const auto& [part, bytes] : trace_.predicted_parts) parts.push_back({{"name", part}, {"bytes", bytes}});
      predicted = {{"peak_bytes", trace_.predicted_peak}, {"parts", parts}};
    }
    return {{"devices", devices}, {"per_unit", units}, {"predicted", predicted}};
  }

  Json modules() const {
    Json out = Json::array();
    for (const auto& row : report_.modules)
      out.push_back({{"name", row.name},
                     {"parent", row.parent},
                     {"depth", row.depth},
                     {"occurrences", row.occurrences},
                     {"operators", row.operators},
                     {"host_total_us", us(row.host_total)},
                     {"host_self_us", us(row.host_self)},
                     {"device_total_us", us(row.device_total())},
                     {"device_self_us", us(row.device_self)},
                     {"forward_device_us", us(row.forward_device)},
                     {"backward_device_us", us(row.backward_device)},
                     {"flops", row.flops > 0 ? Json(row.flops) : Json(nullptr)},
                     {"bytes", row.bytes > 0 ? Json(row.bytes) : Json(nullptr)}});
    return out;
  }

  Json lanes() const {
    std::map<uint32_t, size_t> places;
    Json names = Json::array(), out = Json::array();
    for (const auto& lane : report_.lanes.lanes) {
      Json spans = Json::array();
      for (const auto& span : lane.spans) {
        const auto [place, is_new] = places.emplace(span.name, names.size());
        if (is_new) names.push_back(name(span.name));
        spans.push_back(
            {span.row, at(span.start), us(span.duration), place->second, static_cast<int>(span.kind), span.count});
      }
      out.push_back({{"name", lane.name}, {"group", lane.group}, {"rows", lane.rows}, {"spans", std::move(spans)}});
    }
    return {{"file", report_.file},
            {"names", std::move(names)},
            {"kinds", kLaneKinds},
            {"lanes", std::move(out)},
            {"bucket_us", us(report_.lanes.bucket)}};
  }

  Json roofline() const {
    if (!report_.roofline) return nullptr;
    const auto& view = *report_.roofline;
    Json points = Json::array();
    for (const auto& point : view.points) {
      const double reached =
          point.flops > 0 ? percent(point.tflops(), point.roof_tflops) : percent(point.gbps(), view.peak_gbps);
      points.push_back({{"name", name(point.name)},
                        {"operator", name(point.operator_name)},
                        {"calls", point.calls},
                        {"total_us", us(point.total)},
                        {"flops", point.flops},
                        {"bytes", point.bytes},
                        {"flops_per_byte", point.intensity()},
                        {"tflops", point.tflops()},
                        {"gbps", point.gbps()},
                        {"roof_tflops", point.roof_tflops},
                        {"roof_percent", reached},
                        {"bound", point.is_compute_bound ? "compute" : "memory"}});
    }
    return {{"peak_tflops", view.peak_tflops},
            {"peak_gbps", view.peak_gbps},
            {"ridge_flops_per_byte", view.ridge()},
            {"precision", view.precision},
            {"points", points}};
  }

  Json idle() const {
    if (!report_.has_device) return nullptr;
    Json causes = Json::array();
    for (size_t i = 0; i < kIdleCauses; ++i) {
      const auto cause = static_cast<IdleCause>(i);
      if (report_.idle.causes[i] > 0)
        causes.push_back({{"id", id_of(cause)},
                          {"name", words_of(cause)},
                          {"total_us", us(report_.idle.causes[i])},
                          {"percent", percent(report_.idle.causes[i], report_.idle.of)}});
    }
    return {{"total_us", us(report_.idle.total)},
            {"percent", percent(report_.idle.total, report_.idle.of)},
            {"causes", causes}};
  }

  Json launches() const {
    const auto& view = report_.launches;
    if (view.launches == 0) return nullptr;
    const auto mean = [](Ns sum, uint64_t count) { return us(static_cast<double>(sum) / static_cast<double>(count)); };
    Json streams = Json::array(), rows = Json::array();
    for (const auto& stream : view.streams) {
      Json times = Json::array(), lengths = Json::array();
      for (const auto& point : stream.curve) {
        times.push_back(at(point.time));
        lengths.push_back(point.length);
      }
      streams.push_back({{"device", stream.device},
                         {"stream", trace_.tracks[stream.stream].thread},
                         {"launches", stream.launches},
                         {"longest_queue", stream.longest},
                         {"mean_queue", stream.mean},
                         {"full_us", us(stream.full)},
                         {"queue", {{"time_us", std::move(times)}, {"length", std::move(lengths)}}}});
    }
    for (const auto& row : view.rows) {
      if (rows.size() == kMostRows) break;
      rows.push_back({{"name", name(row.name)},
                      {"launches", row.launches},
                      {"mean_call_us", mean(row.call, row.launches)},
                      {"mean_delay_us", mean(row.delay, row.launches)},
                      {"mean_work_us", mean(row.work, row.launches)},
                      {"shorter_than_call", row.shorter}});
    }
    return {{"launches", view.launches},
            {"call_us", us(view.call)},
            {"mean_call_us", mean(view.call, view.launches)},
            {"mean_delay_us", mean(view.delay, view.launches)},
            {"median_delay_us", us(view.median_delay)},
            {"longest_delay_us", us(view.longest_delay)},
            {"shorter_than_call", view.shorter},
            {"slow_calls", view.slow_calls},
            {"late", view.late},
            {"full_queue", kFullQueue},
            {"streams", std::move(streams)},
            {"rows", std::move(rows)}};
  }

  Json annotations() const {
    Json out = Json::array();
    for (const auto& row : report_.annotations) {
      if (out.size() == kMostRows) break;
      out.push_back({{"name", name(row.name)},
                     {"occurrences", row.occurrences},
                     {"launches", row.launches},
                     {"host_us", us(row.host)},
                     {"device_self_us", us(row.device_self)},
                     {"device_total_us", us(row.device_total)}});
    }
    return out;
  }

  // The longest segments are shown, in the order of time: all that are longer than this, and as many of just this
  // length as there is room for.
  static std::pair<Ns, size_t> shortest_shown(const std::vector<PathSegment>& segments) {
    if (segments.size() <= kMostSegments) return {0, segments.size()};
    std::vector<Ns> durations;
    for (const auto& segment : segments) durations.push_back(segment.duration);
    std::nth_element(durations.begin(), durations.begin() + kMostSegments - 1, durations.end(), std::greater<>());
    const Ns shortest = durations[kMostSegments - 1];
    const auto longer = std::ranges::count_if(segments, [&](const auto& each) { return each.duration > shortest; });
    return {shortest, kMostSegments - static_cast<size_t>(longer)};
  }

  Json critical_path() const {
    if (!report_.critical_path) return nullptr;
    const auto& path = *report_.critical_path;
    std::map<std::string, Ns> by_kind;
    Json segments = Json::array(), parts = Json::array();
    auto [shortest, room] = shortest_shown(path.segments);
    for (const auto& segment : path.segments) {
      by_kind[segment.kind] += segment.duration;
      if (segment.duration > shortest || (segment.duration == shortest && room > 0 && room-- > 0))
        segments.push_back({{"name", segment.name},
                            {"kind", segment.kind},
                            {"start_us", at(segment.start)},
                            {"dur_us", us(segment.duration)}});
    }
    for (const auto& [kind, time] : by_kind)
      parts.push_back({{"kind", kind}, {"total_us", us(time)}, {"percent", percent(time, path.total)}});
    return {{"step", path.step},
            {"total_us", us(path.total)},
            {"parts", parts},
            {"segments", segments},
            {"segments_left_out", path.segments.size() - segments.size()}};
  }

  Json mfu() const {
    if (!report_.mfu) return nullptr;
    const auto& view = *report_.mfu;
    return {{"flops_per_step", view.flops_per_step},
            {"step_us", view.step_us},
            {"achieved_tflops", view.achieved_tflops()},
            {"peak_tflops", view.peak_tflops},
            {"mfu_percent", percent(view.achieved_tflops(), view.peak_tflops)},
            {"device", view.device},
            {"precision", view.precision}};
  }

  Json what_if() const {
    Json out = Json::array();
    for (const auto& row : report_.what_if)
      out.push_back({{"id", row.id},
                     {"title", row.title},
                     {"step_us", row.step_us},
                     {"saved_us", row.saved_us},
                     {"speedup", row.step_us > 0 ? Json((row.step_us + row.saved_us) / row.step_us) : Json(nullptr)}});
    return out;
  }

  static Json sources() {
    Json out = Json::object();
    for (const auto& [key, line] : number_sources()) out[key] = line;
    return out;
  }

  const TraceReport& report_;
  const TraceEvents& trace_;
};

Json distributed_json(const std::optional<DistributedView>& found) {
  if (!found) return nullptr;
  const auto& view = *found;
  Json out{{"run", view.run},
           {"workers", Json::array()},
           {"overlap", Json::array()},
           {"waiting", Json::array()},
           {"operations", Json::array()},
           {"stragglers", Json::array()},
           {"missing_ranks", view.missing},
           {"warnings", view.warnings}};
  for (const auto& row : view.workers)
    out["workers"].push_back({{"rank", row.rank}, {"name", row.name}, {"device", row.device}});
  for (const auto& row : view.overlap)
    out["overlap"].push_back({{"rank", row.rank},
                              {"step", row.step},
                              {"computation_us", us(row.overlap.computation - row.overlap.overlap)},
                              {"overlap_us", us(row.overlap.overlap)},
                              {"communication_us", us(row.overlap.communication - row.overlap.overlap)},
                              {"other_us", us(row.overlap.other)}});
  for (const auto& row : view.waiting)
    out["waiting"].push_back({{"rank", row.rank},
                              {"step", row.step},
                              {"data_transfer_us", us(row.transfer)},
                              {"synchronizing_us", us(row.synchronizing)},
                              {"tb_compat_data_transfer_us", us(row.tb_transfer)},
                              {"tb_compat_synchronizing_us", us(row.tb_synchronizing)}});
  for (const auto& row : view.operations) {
    const auto calls = static_cast<double>(row.calls);
    out["operations"].push_back(
        {{"rank", row.rank},
         {"name", row.name},
         {"calls", row.calls},
         {"total_bytes", or_null(row.bytes)},
         {"average_bytes", row.bytes < 0 ? Json(nullptr) : Json(static_cast<double>(row.bytes) / calls)},
         {"total_latency_us", us(row.latency)},
         {"average_latency_us", us(row.latency) / calls},
         {"data_transfer_us", us(row.transfer)},
         {"average_data_transfer_us", us(row.transfer) / calls},
         {"tb_compat_total_latency_us", us(row.tb_latency)},
         {"tb_compat_data_transfer_us", us(row.tb_transfer)}});
  }
  for (const auto& row : view.stragglers)
    out["stragglers"].push_back(
        {{"rank", row.rank}, {"late_us", us(row.late)}, {"times_last", row.times_last}, {"percent", 100 * row.share}});
  return out;
}

template <class Row>
Json compared_json(const Row& row, const char* device, const char* host) {
  Json out{{"name", row.name}, {"calls", row.calls}, {device, row.device_us}};
  if (host != nullptr) out[host] = row.host_us;
  out["difference_us"] = row.difference_us;
  return out;
}

Json times_json(const std::vector<ComparedStep>& rows) {
  Json out = Json::array();
  for (const auto& row : rows) {
    Json times = Json::array();
    for (const double time : row.total_us) times.push_back(time < 0 ? Json(nullptr) : Json(time));
    out.push_back({{"name", row.name}, {"total_us", std::move(times)}});
  }
  return out;
}

Json comparison_json(const std::optional<Comparison>& found) {
  if (!found) return nullptr;
  const auto& view = *found;
  Json out{{"names", Json::array()}, {"runs", Json::array()}, {"overview", Json::array()}};
  for (const auto& run : view.runs) {
    out["names"].push_back(run.name);
    out["runs"].push_back({{"name", run.name}, {"traces", run.traces}, {"ranks", run.ranks}, {"steps", run.steps}});
  }
  out["total"] = {{"average_us", view.total_us}, {"speedup", Json::array()}};
  for (const double total : view.total_us)
    out["total"]["speedup"].push_back(total > 0 ? Json(view.total_us[0] / total) : Json(nullptr));
  for (size_t i = 0; i < kParts; ++i) {
    Json shares = Json::array();
    for (size_t run = 0; run < view.runs.size(); ++run)
      shares.push_back(percent(view.parts_us[i][run], view.total_us[run]));
    out["overview"].push_back(
        {{"name", to_string(static_cast<Part>(i))}, {"average_us", view.parts_us[i]}, {"percent", shares}});
  }
  for (const char* key : {"operators", "kernels", "units"}) out[key] = Json::array();
  for (const auto& row : view.operators)
    out["operators"].push_back(compared_json(row, "device_self_us", "host_self_us"));
  for (const auto& row : view.kernels) out["kernels"].push_back(compared_json(row, "total_us", nullptr));
  for (const auto& row : view.units) {
    auto unit = compared_json(row, "device_total_us", "host_total_us");
    unit["parent"] = row.parent;
    unit["depth"] = row.depth;
    out["units"].push_back(std::move(unit));
  }
  out["steps"] = times_json(view.steps);
  out["ranks"] = times_json(view.ranks);
  out["warnings"] = view.warnings;
  return out;
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json out = Json::array();
  for (const auto& [key, value] : pairs) out.push_back({{"key", key}, {"value", value}});
  return out;
}

Json run_json(const RunFolder& run) {
  Json curves = Json::array(), checkpoints = Json::array();
  for (const auto& curve : run.curves) {
    Json values = Json::array();
    for (const double value : curve.values) values.push_back(finite(value));
    curves.push_back({{"name", curve.name}, {"steps", curve.steps}, {"values", std::move(values)}});
  }
  for (const auto& row : run.checkpoints)
    checkpoints.push_back({{"path", row.path}, {"bytes", row.bytes}, {"step", or_null(row.step)}, {"time", row.time}});
  return {{"name", run.name},
          {"path", run.path},
          {"curves", std::move(curves)},
          {"configuration", pairs_json(run.configuration)},
          {"environment", pairs_json(run.environment)},
          {"checkpoints", std::move(checkpoints)},
          {"traces", run.traces}};
}

}  // namespace

std::string to_json(const Report& report, int indent) {
  Json out{{"schema", 1}, {"title", report.title}, {"traces", Json::array()}};
  for (const auto& trace : report.traces) out["traces"].push_back(TraceJson(trace).all());
  out["distributed"] = distributed_json(report.distributed);
  out["comparison"] = comparison_json(compare_runs(report));
  out["runs"] = Json::array();
  for (const auto& run : report.runs) out["runs"].push_back(run_json(run));
  // Names of a trace may be no UTF-8.
  return out.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace levin::report
