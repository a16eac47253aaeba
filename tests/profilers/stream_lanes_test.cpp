// Work of a stream that overlaps stands on threads of its own in a trace.
#include "levin/profilers/stream_lanes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/profilers/trace_fields.h"

namespace levin::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Span {
  double start, duration;
  const char* category = "kernel";
  int stream = 7;
};

/// The threads that the spans come to, in order.
std::vector<int> threads_of(StreamLanes& lanes, const std::vector<Span>& spans) {
  std::vector<int> threads;
  for (const auto& span : spans) {
    // The name is hostile: it has the text that is looked for.
    auto names = fmt::format(R"(    "ph": "X", "cat": "{}", "name": "a \"tid\": {} b", "pid": 0, "tid": {},)",
                             span.category, span.stream, span.stream);
    EXPECT_TRUE(StreamLanes::is_device_span(names));
    lanes.place(names, fmt::format(R"(    "ts": {:.3f}, "dur": {:.3f},)", span.start, span.duration));
    EXPECT_THAT(names, HasSubstr(fmt::format(R"("a \"tid\": {} b")", span.stream)));
    threads.push_back(std::stoi(names.substr(names.rfind(": ") + 2)));
  }
  return threads;
}

TEST(TraceTime, IsExact) {
  EXPECT_EQ(trace_time("1794881291869165.567"), 1794881291869165567);
  EXPECT_EQ(trace_time("12"), 12000);
  EXPECT_EQ(trace_time("0.5"), 500);
  EXPECT_EQ(trace_time("3.0019"), 3001);
  EXPECT_EQ(trace_time(""), 0);
}

TEST(StreamLanes, WorkThatOverlapsMovesAndTheRestStays) {
  StreamLanes lanes;
  // Times of a machine that has been up for weeks; one begins where another ends.
  const double base = 4024291423829.397;
  EXPECT_THAT(
      threads_of(lanes,
                 {{base, 10}, {base + 10, 5}, {base + 14.999, 5}, {base + 16, 1}, {base + 16.5, 10}, {base + 2, 1}}),
      ElementsAre(7, 7, 100007, 7, 200007, 100007));
}

TEST(StreamLanes, OrderOfTheFileDoesNotMatter) {
  StreamLanes lanes;
  EXPECT_THAT(threads_of(lanes, {{20, 5}, {0, 5}, {10, 5}, {14, 7}, {4, 7}}), ElementsAre(7, 7, 7, 100007, 100007));
}

TEST(StreamLanes, StreamsAreApart) {
  StreamLanes lanes;
  EXPECT_THAT(threads_of(lanes, {{0, 5}, {1, 5, "gpu_memcpy", 20}, {2, 5, "gpu_memset", 20}}),
              ElementsAre(7, 20, 100020));
}

TEST(StreamLanes, AnnotationsHoldTheirWork) {
  StreamLanes lanes;
  constexpr auto* kRange = "gpu_user_annotation";
  EXPECT_THAT(threads_of(lanes, {{0, 5}, {5, 5}, {0, 10, kRange}, {0, 5, kRange}, {8, 6, kRange}, {11, 2}}),
              ElementsAre(7, 7, 7, 7, 100007, 7));
}

TEST(StreamLanes, ArrowsFollow) {
  StreamLanes lanes;
  threads_of(lanes, {{0, 5}, {1, 5}});
  std::string arrow = R"(    "ph": "f", "id": 47, "pid": 0, "tid": 7, "ts": 1.000,)", other = arrow;
  other.replace(other.rfind("1.000"), 5, "0.000");
  auto first = other;
  lanes.place_arrow(arrow);
  lanes.place_arrow(other);
  EXPECT_THAT(arrow, HasSubstr(R"("tid": 100007, "ts": 1.000)"));
  EXPECT_EQ(other, first);
  threads_of(lanes, {{20, 5}});
  auto late = first;
  lanes.place_arrow(late);
  EXPECT_EQ(late, first);
}

TEST(StreamLanes, AddedThreadsHaveNames) {
  StreamLanes lanes;
  threads_of(lanes, {{0, 5}});
  EXPECT_EQ(lanes.text(), "");
  threads_of(lanes, {{1, 5}});
  EXPECT_THAT(lanes.text(), HasSubstr("\"stream 7 at the same time 2\""));
  EXPECT_THAT(lanes.text(), HasSubstr("\"tid\": 100007"));
}

}  // namespace
}  // namespace levin::detail
