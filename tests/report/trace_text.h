#pragma once

#include <string>

/// Texts of small traces, event by event, as Kineto writes them.
namespace levin::report_test {

class TraceText {
 public:
  TraceText& devices(const std::string& json) {
    head_ += "\"deviceProperties\": " + json + ",";
    return *this;
  }
  TraceText& member(const std::string& key, const std::string& json) {
    head_ += "\"" + key + "\": " + json + ",";
    return *this;
  }
  TraceText& span(const std::string& category, const std::string& name, double start, double duration, int thread,
                  const std::string& arguments = "", const std::string& process = "100") {
    events_ += std::string(events_.empty() ? "" : ",") + "{\"ph\": \"X\", \"cat\": \"" + category + "\", \"name\": \"" +
               name + "\", \"pid\": " + process + ", \"tid\": " + std::to_string(thread) +
               ", \"ts\": " + std::to_string(start) + ", \"dur\": " + std::to_string(duration) + ", \"args\": {" +
               arguments + "}}";
    return *this;
  }
  TraceText& op(const std::string& name, double start, double duration, int external = -1,
                const std::string& more = "") {
    return span("cpu_op", name, start, duration, 1, id(external) + (external >= 0 && !more.empty() ? ", " : "") + more);
  }
  TraceText& annotation(const std::string& name, double start, double duration, int external = -1) {
    return span("user_annotation", name, start, duration, 1, id(external));
  }
  TraceText& call(const std::string& name, double start, double duration, int external, int correlation,
                  const std::string& category = "cuda_runtime") {
    return span(category, name, start, duration, 1, id(external) + ", \"correlation\": " + std::to_string(correlation));
  }
  TraceText& device(const std::string& category, const std::string& name, double start, double duration, int external,
                    int correlation, const std::string& more = "") {
    return span(category, name, start, duration, 7,
                id(external) + ", \"correlation\": " + std::to_string(correlation) + ", \"device\": 0, \"stream\": 7" +
                    (more.empty() ? "" : ", " + more),
                "0");
  }
  TraceText& kernel(const std::string& name, double start, double duration, int external, int correlation,
                    double blocks = -1, double occupancy = -1) {
    std::string more;
    if (blocks >= 0)
      more = "\"blocks per SM\": " + std::to_string(blocks) +
             ", \"est. achieved occupancy %\": " + std::to_string(occupancy);
    return device("kernel", name, start, duration, external, correlation, more);
  }
  TraceText& memory(double time, int64_t bytes, uint64_t address, int64_t allocated, int device = 0) {
    events_ += std::string(events_.empty() ? "" : ",") +
               "{\"ph\": \"i\", \"s\": \"t\", \"name\": \"[memory]\", \"cat\": \"cpu_instant_event\", \"pid\": 100, "
               "\"tid\": 1, \"ts\": " +
               std::to_string(time) + ", \"args\": {\"Total Reserved\": " + std::to_string(allocated * 2) +
               ", \"Total Allocated\": " + std::to_string(allocated) + ", \"Bytes\": " + std::to_string(bytes) +
               ", \"Addr\": " + std::to_string(address) + ", \"Device Id\": " + std::to_string(device) +
               ", \"Device Type\": " + (device < 0 ? "0" : "1") + "}}";
    return *this;
  }
  TraceText& raw(const std::string& event) {
    events_ += (events_.empty() ? "" : ",") + event;
    return *this;
  }
  std::string text() const {
    return "{\"schemaVersion\": 1, " + head_ + "\"traceEvents\": [" + events_ + "], \"traceName\": \"t\"}";
  }

 private:
  static std::string id(int external) { return external < 0 ? "" : "\"External id\": " + std::to_string(external); }

  std::string head_, events_;
};

inline constexpr const char* kH200 =
    "[{\"id\": 0, \"name\": \"NVIDIA H200\", \"totalGlobalMem\": 150754820096, \"computeMajor\": 9, \"computeMinor\": "
    "0, \"numSms\": 132}]";

/// Base trace A of the conformance cases.
inline TraceText base_trace() {
  TraceText trace;
  trace.devices(kH200)
      .annotation("ProfilerStep#1", 1000, 1000, 1)
      .annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 200, 2)
      .op("aten::linear", 1200, 300, 3)
      .op("aten::addmm", 1220, 260, 4)
      .call("cudaLaunchKernel", 1250, 50, 4, 10)
      .op("aten::copy_", 1580, 150, 5)
      .call("cudaMemcpyAsync", 1600, 100, 5, 11)
      .op("aten::relu", 1850, 50, 6)
      .call("cudaLaunchKernel", 1860, 20, 6, 12)
      .kernel("sm90_xmma_gemm_f16", 1300, 400, 4, 10, 2, 50)
      .device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1650, 150, 5, 11, "\"bytes\": 1048576")
      .kernel("relu_kernel", 2000, 300, 6, 12, 0.5, 10);
  return trace;
}

}  // namespace levin::report_test
