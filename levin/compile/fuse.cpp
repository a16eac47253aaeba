#include "levin/compile/fuse.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>

#include "levin/compile/backends/backend.h"
#include "levin/compile/draft.h"
#include "levin/compile/fused_call.h"
#include "levin/compile/lower.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

/// Nodes between two that only read the same.
constexpr int32_t kFarthestReader = 40;
constexpr size_t kMostNodes = 64, kMostValues = 320, kMostTensors = 28;

/// Nodes that run as one: a group, or a node alone.
struct Cluster {
  std::vector<int32_t> nodes;
  std::set<int32_t> recomputed;
  std::optional<Draft> draft;  // none: operators that no group knows
  bool alive = true;

  std::vector<int32_t> members() const {
    std::vector<int32_t> all = nodes;
    all.insert(all.end(), recomputed.begin(), recomputed.end());
    std::sort(all.begin(), all.end());
    return all;
  }
};

using Version = std::pair<StorageId, int32_t>;

Version version_of(const View& view) {
  return {view.storage, view.version};
}

/// Whether a schedule of the group keeps a device busy.
bool is_good(const Draft& draft) {
  const auto& group = draft.group();
  if (group.values.size() > kMostValues || draft.loads().size() + draft.made().size() > kMostTensors + 24) return false;
  if (!draft.has_reduction()) return true;
  const auto levels = group.levels();
  const auto phases = group.phases();
  bool has_rows = false, has_columns = false, has_late = false;
  for (size_t i = 0; i < group.values.size(); ++i) {
    has_columns = has_columns || group.values[i].op == ScalarOp::kColumnSum;
    has_rows = has_rows || (is_reduction(group.values[i].op) && group.values[i].op != ScalarOp::kColumnSum);
    has_late = has_late || (levels[i] == kElement && phases[i] > 0) || phases[i] > 1;
  }
  const int64_t rows = group.rows(), columns = group.columns();
  if (has_rows && has_columns && columns > 6144) return false;
  if (has_rows && has_late && rows < 64 && columns > 16384) return false;
  return true;
}

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), index_(graph) {}

  std::string run() {
    std::vector<Node> nodes;
    size_t begin = 0;
    for (size_t i = 0; i <= graph_.nodes.size(); ++i) {
      if (i < graph_.nodes.size() && !graph_.nodes[i].barrier) continue;
      segment(static_cast<int32_t>(begin), static_cast<int32_t>(i), nodes);
      if (i < graph_.nodes.size()) nodes.push_back(graph_.nodes[i]);
      begin = i + 1;
    }
    if (groups_ == 0) return {};
    graph_.nodes = std::move(nodes);
    graph_.renumber();
    return levin::detail::concat(joined_, " operators in ", groups_, " groups");
  }

 private:
  const Node& node(int32_t n) const { return graph_.nodes[static_cast<size_t>(n)]; }
  Cluster& cluster_of(int32_t n) { return clusters_[static_cast<size_t>(of_[static_cast<size_t>(n - begin_)])]; }
  int32_t id_of(int32_t n) const { return of_[static_cast<size_t>(n - begin_)]; }
  bool in_segment(int32_t n) const { return n >= begin_ && n < end_; }

  bool on_one_device(const Node& of) const {
    const auto device = graph_.device_of(of.writes[0]);
    const auto same = [&](const View& view) { return graph_.device_of(view) == device; };
    return std::all_of(of.reads.begin(), of.reads.end(), same) && std::all_of(of.writes.begin(), of.writes.end(), same);
  }

  void link(int32_t from, int32_t to) {
    if (from == to || !in_segment(from) || !in_segment(to)) return;
    after_[static_cast<size_t>(from - begin_)].push_back(to);
  }

  void link_all() {
    after_.assign(static_cast<size_t>(end_ - begin_), {});
    int32_t last_random = -1;
    for (int32_t n = begin_; n < end_; ++n) {
      for (const auto& view : node(n).reads) link_read(n, version_of(view));
      for (const auto& view : node(n).writes) {
        const auto before = index_.writer(view.storage, view.version - 1);
        if (view.version > 0 && before >= 0) link(before, n);
        if (view.version > 0)
          for (const auto reader : index_.readers(view.storage, view.version - 1)) link(reader, n);
      }
      if (node(n).random) {
        if (last_random >= 0) link(last_random, n);
        last_random = n;
      }
    }
  }
  /// After what was written, before it is written over.
  void link_read(int32_t n, const Version& of) {
    const auto writer = index_.writer(of.first, of.second);
    if (writer >= 0) link(writer, n);
    if (of.second < index_.last_version(of.first)) {
      const auto next = index_.writer(of.first, of.second + 1);
      if (next >= 0) link(n, next);
    }
  }

  /// Clusters in an order in which they may run, the earliest by their last node first.
  std::vector<int32_t> sorted() const {
    std::vector<int32_t> waits(clusters_.size(), 0);
    const auto each_edge = [&](const auto& visit) {
      for (int32_t n = begin_; n < end_; ++n)
        for (const auto to : after_[static_cast<size_t>(n - begin_)])
          if (id_of(n) != id_of(to)) visit(id_of(n), id_of(to));
    };
    each_edge([&](int32_t, int32_t to) { ++waits[static_cast<size_t>(to)]; });
    using Entry = std::pair<int32_t, int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    const auto push = [&](int32_t c) { ready.emplace(clusters_[static_cast<size_t>(c)].nodes.back(), c); };
    for (size_t c = 0; c < clusters_.size(); ++c)
      if (clusters_[c].alive && waits[c] == 0) push(static_cast<int32_t>(c));
    std::vector<int32_t> order;
    while (!ready.empty()) {
      const auto c = ready.top().second;
      ready.pop();
      order.push_back(c);
      for (const auto n : clusters_[static_cast<size_t>(c)].nodes)
        for (const auto to : after_[static_cast<size_t>(n - begin_)])
          if (id_of(to) != c && --waits[static_cast<size_t>(id_of(to))] == 0) push(id_of(to));
    }
    return order;
  }

  void sort_places() {
    place_.assign(clusters_.size(), 0);
    const auto order = sorted();
    for (size_t i = 0; i < order.size(); ++i) place_[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  }

  /// Whether a way leads from one of these clusters to another of them (or itself) through others.
  bool has_detour(const std::set<int32_t>& set) const {
    int32_t last = 0;
    for (const auto c : set) last = std::max(last, place_[static_cast<size_t>(c)]);
    std::vector<int32_t> open;
    std::set<int32_t> seen;
    const auto visit = [&](int32_t c) {
      for (const auto n : clusters_[static_cast<size_t>(c)].nodes)
        for (const auto to : after_[static_cast<size_t>(n - begin_)]) {
          const auto next = id_of(to);
          if (next == c || place_[static_cast<size_t>(next)] > last) continue;
          if (set.contains(next)) {
            if (!set.contains(c)) return true;
          } else if (seen.insert(next).second) {
            open.push_back(next);
          }
        }
      return false;
    };
    for (const auto c : set) visit(c);
    while (!open.empty()) {
      const auto c = open.back();
      open.pop_back();
      if (visit(c)) return true;
    }
    return false;
  }

  bool reaches(int32_t from, int32_t to) const {
    if (from == to) return true;
    std::vector<int32_t> open{from};
    std::set<int32_t> seen{from};
    while (!open.empty()) {
      const auto c = open.back();
      open.pop_back();
      for (const auto n : clusters_[static_cast<size_t>(c)].nodes)
        for (const auto edge : after_[static_cast<size_t>(n - begin_)]) {
          const auto next = id_of(edge);
          if (next == to) return true;
          if (place_[static_cast<size_t>(next)] < place_[static_cast<size_t>(to)] && seen.insert(next).second)
            open.push_back(next);
        }
    }
    return false;
  }

  bool try_merge(int32_t a, int32_t b) {
    auto& first = clusters_[static_cast<size_t>(a)];
    auto& second = clusters_[static_cast<size_t>(b)];
    if (!first.draft || !second.draft || first.nodes.size() + second.nodes.size() > kMostNodes) return false;
    std::vector<int32_t> nodes = first.nodes;
    nodes.insert(nodes.end(), second.nodes.begin(), second.nodes.end());
    std::sort(nodes.begin(), nodes.end());
    if (graph_.device_of(node(first.nodes[0]).writes[0]) != graph_.device_of(node(second.nodes[0]).writes[0]))
      return false;
    if (has_detour({a, b})) return false;
    auto draft = Draft::make(graph_, nodes);
    if (!draft || !is_good(*draft)) return false;
    first.alive = false;
    for (const auto n : first.nodes) of_[static_cast<size_t>(n - begin_)] = b;
    first.nodes.clear();
    second.nodes = std::move(nodes);
    second.draft = std::move(draft);
    sort_places();
    return true;
  }

  void segment(int32_t begin, int32_t end, std::vector<Node>& to) {
    begin_ = begin, end_ = end;
    if (begin == end) return;
    clusters_.clear(), of_.clear();
    for (int32_t n = begin; n < end; ++n) {
      Cluster cluster{.nodes = {n}};
      if (find_lower_row(node(n)) && on_one_device(node(n))) cluster.draft = Draft::make(graph_, {n});
      of_.push_back(n - begin);
      clusters_.push_back(std::move(cluster));
    }
    link_all();
    sort_places();
    for (int32_t n = begin; n < end; ++n) {
      if (!cluster_of(n).draft) continue;
      for (const auto candidate : candidates(n))
        if (candidate != id_of(n) && clusters_[static_cast<size_t>(candidate)].alive) try_merge(candidate, id_of(n));
    }
    for (int round = 0; round < 3; ++round)
      if (!recompute()) break;
    emit(to);
  }

  /// Clusters that make what the node reads, then those that read the same; the latest first.
  std::vector<int32_t> candidates(int32_t n) {
    std::vector<int32_t> makers, readers;
    int64_t most = 0;
    for (const auto& view : node(n).writes) most = std::max(most, view.numel());
    for (const auto& view : node(n).reads) most = std::max(most, view.numel());
    for (const auto& view : node(n).reads) {
      const auto writer = index_.writer(view);
      if (writer >= 0 && in_segment(writer)) makers.push_back(writer);
      if (view.numel() != most) continue;
      for (const auto reader : index_.readers(view))
        if (reader < n && n - reader <= kFarthestReader && in_segment(reader) && node(reader).phase == node(n).phase)
          readers.push_back(reader);
    }
    std::sort(makers.rbegin(), makers.rend());
    std::sort(readers.rbegin(), readers.rend());
    constexpr size_t kMostReaders = 6;
    if (readers.size() > kMostReaders) readers.resize(kMostReaders);
    makers.insert(makers.end(), readers.begin(), readers.end());
    std::vector<int32_t> ids;
    for (const auto maker : makers) {
      const auto id = id_of(maker);
      if (clusters_[static_cast<size_t>(id)].draft && std::find(ids.begin(), ids.end(), id) == ids.end())
        ids.push_back(id);
    }
    return ids;
  }

  // ---- what is cheaper to compute again than to keep
  static bool is_pointwise(const Node& of) {
    const auto* row = find_lower_row(of);
    return row && !row->space;
  }

  /// Elementwise nodes of one cluster that make a version.
  std::set<int32_t> makers_of(int32_t writer) {
    std::set<int32_t> makers;
    std::vector<int32_t> open{writer};
    const auto home = id_of(writer);
    while (!open.empty()) {
      const auto n = open.back();
      open.pop_back();
      const auto& of = node(n);
      const bool fresh = of.writes.size() == 1 && of.writes[0].version == 1 &&
                         !graph_.storages[static_cast<size_t>(of.writes[0].storage)].enters;
      if (!in_segment(n) || id_of(n) != home || !fresh || !is_pointwise(of)) continue;
      if (!makers.insert(n).second) continue;
      for (const auto& view : of.reads)
        if (const auto before = index_.writer(view); before >= 0) open.push_back(before);
    }
    return makers;
  }

  /// Reads of others than the cluster, at its place or later.
  bool is_read_later(const Version& version, int32_t c) const {
    for (const auto reader : index_.readers(version.first, version.second))
      if (!in_segment(reader) ||
          (id_of(reader) != c && place_[static_cast<size_t>(id_of(reader))] > place_[static_cast<size_t>(c)]))
        return true;
    return version.second == index_.last_version(version.first) &&
           (graph_.storages[static_cast<size_t>(version.first)].leaves ||
            graph_.storages[static_cast<size_t>(version.first)].enters);
  }

  bool recompute() {
    bool changed = false;
    for (const auto c : sorted()) {
      auto& cluster = clusters_[static_cast<size_t>(c)];
      if (!cluster.alive || !cluster.draft) continue;
      std::set<int32_t> all = cluster.recomputed;
      std::vector<std::set<int32_t>> choices;
      for (const auto& slot : cluster.draft->loads()) {
        const auto writer = index_.writer(slot.view);
        if (writer < 0 || !in_segment(writer) || id_of(writer) == c || slot.view.sizes.empty()) continue;
        if (!clusters_[static_cast<size_t>(id_of(writer))].draft) continue;
        auto makers = makers_of(writer);
        if (makers.empty()) continue;
        all.insert(makers.begin(), makers.end());
        choices.push_back(std::move(makers));
      }
      if (choices.empty()) continue;
      if (choices.size() > 1 && try_recompute(c, all)) {
        changed = true;
        continue;
      }
      for (auto& choice : choices) {
        auto some = cluster.recomputed;
        some.insert(choice.begin(), choice.end());
        if (some != cluster.recomputed && try_recompute(c, some)) changed = true;
      }
    }
    return changed;
  }

  bool try_recompute(int32_t c, const std::set<int32_t>& recomputed) {
    auto& cluster = clusters_[static_cast<size_t>(c)];
    Cluster next{.nodes = cluster.nodes, .recomputed = recomputed};
    if (next.nodes.size() + recomputed.size() > kMostNodes) return false;
    auto draft = Draft::make(graph_, next.members(), recomputed);
    if (!draft || !is_good(*draft)) return false;
    if (draft->bytes_read() > cluster.draft->bytes_read()) return false;
    // Memory that lives longer must not be more than what is no longer kept.
    std::map<Version, int64_t> before, now;
    for (const auto& slot : cluster.draft->loads())
      before[version_of(slot.view)] = graph_.storages[static_cast<size_t>(slot.view.storage)].bytes;
    for (const auto& slot : draft->loads())
      now[version_of(slot.view)] = graph_.storages[static_cast<size_t>(slot.view.storage)].bytes;
    int64_t longer = 0, shorter = 0;
    for (const auto& [version, bytes] : now)
      if (!before.contains(version) && !is_read_later(version, c)) longer += bytes;
    for (const auto& [version, bytes] : before)
      if (!now.contains(version) && !is_read_later(version, c)) shorter += bytes;
    if (longer > shorter) return false;
    // It reads at its own place now: after its writers, before what is written over.
    for (const auto& [version, bytes] : now) {
      if (before.contains(version)) continue;
      const auto writer = index_.writer(version.first, version.second);
      if (writer >= 0 && in_segment(writer) && reaches(c, id_of(writer))) return false;
      if (version.second < index_.last_version(version.first)) {
        const auto over = index_.writer(version.first, version.second + 1);
        if (over < 0 || !in_segment(over)) {
          if (over >= 0 && over < begin_) return false;
        } else if (id_of(over) == c || reaches(id_of(over), c)) {
          return false;
        }
      }
    }
    for (const auto& [version, bytes] : now)
      if (!before.contains(version)) link_read(cluster.nodes[0], version);
    cluster.recomputed = recomputed;
    cluster.draft = std::move(draft);
    sort_places();
    return true;
  }

  /// Of single operators on CUDA: those that torch computes number by number, because tensors lie differently, and
  /// sums over all but the innermost dimension.
  bool is_better_alone(const Cluster& cluster) const {
    const auto& alone = node(cluster.nodes[0]);
    constexpr int64_t kFewest = int64_t{1} << 16;
    if (!graph_.device_of(alone.writes[0]).is_cuda() || cluster.draft->group().elements() < kFewest) return false;
    const auto& group = cluster.draft->group();
    const auto& made = cluster.draft->made();
    const auto inner_of = [&](const Access& access) {
      for (size_t d = 0; d < group.sizes.size(); ++d)
        if (access.strides[d] == 1 && group.sizes[d] > 1) return static_cast<int>(d);
      return -1;
    };
    if (cluster.draft->has_reduction()) {
      const auto name = alone.name();
      if (name.rfind("aten::sum", 0) != 0 || cluster.draft->loads().size() != 1) return false;
      const int inner = inner_of(cluster.draft->loads()[0].access);
      return inner >= 0 && inner < group.row_dims && group.columns() >= 64;
    }
    if (made.size() != 1 || !is_pointwise(alone)) return false;
    const int inner = inner_of(made[0].access);
    if (inner < 0 || group.sizes[static_cast<size_t>(inner)] % 8 != 0) return false;
    bool differs = false;
    for (const auto& slot : cluster.draft->loads()) {
      const auto stride = slot.access.strides[static_cast<size_t>(inner)];
      if (stride > 1) return false;  // one of the two would be read across
      differs = differs || slot.access.strides != made[0].access.strides;
    }
    return differs;
  }

  // ---- the new list
  void emit(std::vector<Node>& to) {
    const auto order = sorted();
    std::map<Version, bool> wanted;
    std::vector<Node> reversed;
    const auto leaves = [&](const Version& version) {
      const auto& storage = graph_.storages[static_cast<size_t>(version.first)];
      const bool read_behind =
          std::any_of(index_.readers(version.first, version.second).begin(),
                      index_.readers(version.first, version.second).end(), [&](int32_t n) { return n >= end_; });
      return read_behind ||
             (version.second == index_.last_version(version.first) && (storage.leaves || storage.enters)) ||
             (version.second < index_.last_version(version.first) &&
              index_.writer(version.first, version.second + 1) >= end_);
    };
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      auto& cluster = clusters_[static_cast<size_t>(*at)];
      const bool fused =
          cluster.draft && (cluster.nodes.size() + cluster.recomputed.size() > 1 || is_better_alone(cluster));
      if (!fused) {
        for (const auto& view : node(cluster.nodes[0]).reads) wanted[version_of(view)] = true;
        // What is written in part needs the rest.
        for (const auto& view : node(cluster.nodes[0]).writes) wanted[{view.storage, view.version - 1}] = true;
        reversed.push_back(node(cluster.nodes[0]));
        continue;
      }
      const auto& made = cluster.draft->made();
      std::vector<bool> keeps;
      bool any = false;
      for (const auto& one : made) {
        keeps.push_back(!one.recomputed && (wanted.contains(version_of(one.view)) || leaves(version_of(one.view))));
        any = any || keeps.back();
      }
      if (!any) continue;
      std::vector<Draft::Slot> slots;
      auto group = cluster.draft->finished(keeps, slots);
      const auto& last = node(cluster.nodes.back());
      Node joined{.phase = last.phase, .unit = last.unit};
      for (const auto& slot : slots) {
        (slot.written ? joined.writes : joined.reads).push_back(slot.view);
        if (!slot.written) wanted[version_of(slot.view)] = true;
      }
      // A write into a part of older memory: the rest must be there.
      for (const auto& view : joined.writes)
        if (view.version > 0) wanted[{view.storage, view.version - 1}] = true;
      joined.call = std::make_shared<FusedCall>(std::move(group), graph_.device_of(last.writes[0]));
      reversed.push_back(std::move(joined));
      joined_ += cluster.nodes.size();
      ++groups_;
    }
    for (auto at = reversed.rbegin(); at != reversed.rend(); ++at) to.push_back(std::move(*at));
  }

  Graph& graph_;
  GraphIndex index_;
  int32_t begin_ = 0, end_ = 0;
  std::vector<Cluster> clusters_;
  std::vector<int32_t> of_;     // the cluster of each node
  std::vector<int32_t> place_;  // of each cluster in a valid order
  std::vector<std::vector<int32_t>> after_;
  size_t joined_ = 0, groups_ = 0;
};

}  // namespace

std::string fuse(Graph& graph) {
  const bool on_cuda = std::any_of(graph.storages.begin(), graph.storages.end(),
                                   [](const GraphStorage& storage) { return storage.device.is_cuda(); });
  if (on_cuda)
    if (const auto why = why_no_cuda_kernels(); !why.empty()) return "nothing is fused: " + why;
  auto line = Fuser(graph).run();
  std::vector<FusedCall*> calls;
  for (const auto& node : graph.nodes)
    if (auto* call = dynamic_cast<FusedCall*>(node.call.get())) calls.push_back(call);
  prepare(calls);
  return line;
}

}  // namespace levin::compile
