// Traces of Python's torch.profiler, and a sample of Kineto, against what the TensorBoard plugin (0.4.3) says of them:
// make_fixtures.py and make_sample_fixture.py.
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "levin/testing/paths.h"

namespace levin::report {
namespace {

std::filesystem::path fixtures() {
  return std::filesystem::path(levin::testing::source_dir()) / "tests/report/fixtures";
}

nlohmann::json plugin_numbers() {
  return nlohmann::json::parse(std::ifstream(fixtures() / "plugin_numbers.txt"));
}

TraceReport report_of(const std::string& name) {
  return report_trace(read_trace(fixtures() / (name + ".pt.trace.json.gz")));
}

class Plugin : public ::testing::TestWithParam<const char*> {};

TEST_P(Plugin, SameOverviewAndOperators) {
  const auto plugin = plugin_numbers()[GetParam()];
  const auto report = report_of(GetParam());
  ASSERT_EQ(report.steps.steps.size(), plugin["steps"].get<size_t>());
  const double total = plugin["average_us"][8];
  EXPECT_NEAR(report.steps.average_total / 1e3, total, 0.01);
  // Version 0.4.3 does not see loaders of torch 2, whose spans are annotations.
  const bool has_loader = report.steps.average_of(Part::kDataLoader) > 0;
  for (size_t i = 0; i < kParts; ++i) {
    if (has_loader && i >= static_cast<size_t>(Part::kDataLoader)) continue;
    EXPECT_NEAR(report.steps.average[i] / report.steps.average_total, plugin["average_us"][i].get<double>() / total,
                1e-4)
        << to_string(static_cast<Part>(i));
  }
  size_t found = 0;
  for (const auto& row : report.operators) {
    const auto& name = report.events.name(row.name);
    if (!plugin["operators"].contains(name)) continue;
    ++found;
    const auto& numbers = plugin["operators"][name];
    EXPECT_EQ(row.calls, numbers[0].get<uint64_t>()) << name;
    EXPECT_NEAR(static_cast<double>(row.host_self) / 1e3, numbers[3].get<double>(), 0.05) << name;
    EXPECT_NEAR(static_cast<double>(row.host_total) / 1e3, numbers[4].get<double>(), 0.05) << name;
  }
  EXPECT_EQ(found, plugin["operators"].size());
}

TEST_P(Plugin, SameMemory) {
  const auto plugin = plugin_numbers()[GetParam()];
  if (!plugin.contains("memory")) return;
  const auto report = report_of(GetParam());
  ASSERT_EQ(report.memory.size(), plugin["memory"].size());
  const auto& device = report.memory.at(0);
  const auto& rows = plugin["memory"][device_name(device.device)];
  EXPECT_EQ(device.statistics.size(), rows.size());
  for (const auto& row : device.statistics) {
    const auto& name = report.events.name(row.name);
    EXPECT_EQ(nlohmann::json({row.self_increase, row.self_size, row.self_count, row.increase, row.size, row.count,
                              static_cast<int64_t>(row.calls)}),
              rows[name])
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, Plugin,
                         ::testing::Values("plain", "loader", "modules", "ddp/node_0.1700000000000",
                                           "ddp/node_1.1700000000000"));

TEST(PluginRanks, SameWaiting) {
  const auto plugin = plugin_numbers()["ranks"];
  const auto report = make_report({fixtures() / "ddp"});
  ASSERT_TRUE(report.distributed);
  for (const auto& row : report.distributed->waiting) {
    if (row.step == "all") continue;
    const auto& numbers = plugin[static_cast<size_t>(row.rank)]["steps"][row.step.substr(13)];
    EXPECT_NEAR(static_cast<double>(row.transfer) / 1e3, numbers[1].get<double>(), 0.01);
    EXPECT_NEAR(static_cast<double>(row.transfer + row.synchronizing) / 1e3, numbers[0].get<double>(), 0.01);
  }
  for (const auto& row : report.distributed->operations) {
    const auto& numbers = plugin[static_cast<size_t>(row.rank)]["operations"][row.name];
    EXPECT_EQ(row.calls, numbers[0].get<uint64_t>());
    EXPECT_EQ(row.bytes, numbers[1].get<int64_t>());
    EXPECT_NEAR(static_cast<double>(row.latency) / 1e3, numbers[2].get<double>(), 0.01);
  }
}

TEST(PluginModules, NamesOfPython) {
  const auto report = report_of("modules");
  std::vector<std::string> names;
  for (const auto& row : report.modules) names.push_back(row.name);
  EXPECT_THAT(names, ::testing::ElementsAre("Sequential_0", "Linear_0", "ReLU_0", "Linear_1"));
  EXPECT_EQ(report.modules[1].parent, 0);
}

std::string unpacked(const std::filesystem::path& path) {
  std::string text;
  gzFile file = ::gzopen(path.c_str(), "rb");
  std::vector<char> block(1 << 16);
  for (int count = 0; (count = ::gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0;)
    text.append(block.data(), static_cast<size_t>(count));
  ::gzclose(file);
  return text;
}

// The rows of make_sample_fixture.py as a trace.
std::string sample_trace() {
  std::istringstream rows(unpacked(fixtures() / "resnet50.csv.gz"));
  std::string text =
      R"({"deviceProperties": [{"id": 0, "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34084028416, "computeMajor": 7, "computeMinor": 0}], "traceEvents": [{"ph": "M", "name": "x"})";
  int64_t time = 0;
  for (std::string line; std::getline(rows, line);) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
    cells.resize(9);
    const auto number = [&](size_t i) { return cells[i].empty() ? int64_t{0} : std::stoll(cells[i]); };
    time += number(3);
    const char* category = cells[0] == "o"   ? "Operator"
                           : cells[0] == "r" ? "Runtime"
                           : cells[0] == "k" ? "Kernel"
                           : cells[0] == "c" ? "Memcpy"
                                             : "Memset";
    const auto name = cells[1].empty() ? cells[0] : cells[1];
    text += ",{\"ph\": \"X\", \"cat\": \"" + std::string(category) + "\", \"name\": \"" + name +
            "\", \"pid\": 0, \"tid\": " + std::to_string(number(2)) + ", \"ts\": " + std::to_string(time) +
            ", \"dur\": " + std::to_string(number(4)) + ", \"args\": {\"device\": 0";
    if (number(5) > 0) text += ", \"External id\": " + std::to_string(number(5));
    if (number(6) > 0) text += ", \"correlation\": " + std::to_string(number(6));
    if (cells[0] == "k")
      text += ", \"blocks per SM\": " + std::to_string(static_cast<double>(number(7)) / 1000) +
              ", \"est. achieved occupancy %\": " + std::to_string(number(8));
    text += "}}";
  }
  return text + "]}";
}

TEST(PluginSample, ResNetOnAV100) {
  const auto report = report_trace(read_trace_text(sample_trace()));
  std::vector<double> parts;
  for (const double part : report.steps.average) parts.push_back(std::round(part / 1e3));
  EXPECT_THAT(parts, ::testing::ElementsAre(98535, 1734, 89, 0, 4053, 35504, 13786, 1211));
  EXPECT_EQ(std::round(report.steps.average_total / 1e3), 154911);
  EXPECT_NEAR(100 * report.gpus[0].utilization, 63.61, 0.005);
  EXPECT_NEAR(100 * *report.gpus[0].sm_efficiency, 62.65, 0.005);
  EXPECT_NEAR(100 * *report.gpus[0].occupancy, 49.14, 0.005);
  std::string all;
  for (const auto& row : report.recommendations) all += row.id + ": " + row.evidence + "\n";
  EXPECT_THAT(all, ::testing::HasSubstr("slow_loader: 22.9 %"));
  EXPECT_THAT(all, ::testing::HasSubstr("fp32_matmul: 68 %"));
  EXPECT_EQ(report.recommendations.size(), 2u);
}

}  // namespace
}  // namespace levin::report
