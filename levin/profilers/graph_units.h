#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "levin/profilers/unit_spans.h"

/// Kernels of a replayed graph have no operators around them. Which unit each belongs to is noted when the graph is
/// captured.
namespace levin::detail {

struct GraphUnits {
  struct Owner {
    /// A place in `units`; -1 for none.
    int32_t unit = -1;
    bool is_backward = false;
  };

  /// Of the graph, in spans of its replays.
  int64_t id = 0;
  std::vector<UnitSpanName> units;
  /// Of each kernel, in the order in which they run.
  std::vector<Owner> kernels;
};

/// Follows the units of models while a graph is captured on one thread and those of its backward. One at a time.
class GraphUnitMarks {
 public:
  /// `nodes`: how many nodes the graph has so far. Any thread calls it.
  GraphUnitMarks(const std::vector<torch::nn::Module*>& models, std::function<int64_t()> nodes);
  ~GraphUnitMarks();
  GraphUnitMarks(const GraphUnitMarks&) = delete;
  GraphUnitMarks& operator=(const GraphUnitMarks&) = delete;

  /// What belongs to whom, when the capture is done; traces know it as long as it lives. Null without kernels.
  std::shared_ptr<const GraphUnits> units(const std::vector<bool>& is_kernel);

  /// From now on nodes belong to `owner`, until leave().
  void enter(GraphUnits::Owner owner);
  void leave();
  const UnitCalls& calls() const { return *calls_; }
  /// The unit that made a node of the autograd graph; -1 for none.
  int32_t unit_of(uint64_t thread, int64_t node) const;

 private:
  struct Mark {
    int64_t node;
    GraphUnits::Owner owner;
  };

  void mark(GraphUnits::Owner owner);

  std::function<int64_t()> nodes_;
  std::shared_ptr<UnitCalls> calls_;
  std::vector<Attachment> attachments_;
  std::array<uint64_t, 2> callbacks_ = {};
  std::mutex mutex_;
  std::vector<GraphUnits::Owner> open_;
  std::vector<Mark> marks_;
};

/// While one lives, captured graphs note the units of their kernels.
class WantsGraphUnits {
 public:
  WantsGraphUnits();
  ~WantsGraphUnits();
  WantsGraphUnits(const WantsGraphUnits&) = delete;
  WantsGraphUnits& operator=(const WantsGraphUnits&) = delete;
};
bool graph_units_are_wanted();

/// Of the graph with this id; null when it is gone.
std::shared_ptr<const GraphUnits> find_graph_units(int64_t id);
/// Whether there are any.
bool has_graph_units();

/// The name of the span around a replay, and the id in such a name (-1: it is none).
std::string replay_span_name(int64_t id);
int64_t replayed_graph(std::string_view span_name);

}  // namespace levin::detail
