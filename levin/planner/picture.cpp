#include "levin/planner/picture.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/planner/explain.h"
#include "levin/strategies/pipeline/simulation.h"

namespace levin::planner {
namespace {

constexpr double kWidth = 960, kLeft = 24, kRight = kWidth - 24, kLabels = 150;
constexpr uint32_t kInk = 0x18181b, kFaint = 0x71717a, kBox = 0xf4f4f5;
constexpr std::array<uint32_t, 4> kGroups{0x2563eb, 0x60a5fa, 0x1e40af, 0x93c5fd};
constexpr uint32_t kForward = 0x2563eb, kBackward = 0xf59e0b, kWeights = 0x10b981;
constexpr int64_t kMostStages = 8, kMostNodes = 4, kMostMicrobatches = 16;

struct Part {
  std::string name;
  double value;
  uint32_t color;
};

/// Draws from top to bottom; each part moves `y_` below itself.
class Painter {
 public:
  Painter(const PlanQuestion& question, const Plan& plan, double height)
      : question_(question), plan_(plan), c_(plan.candidate), drawing_(kWidth, height) {}

  Drawing paint() {
    title();
    mesh();
    if (c_.pp > 1) pipeline();
    time();
    memory();
    return std::move(drawing_);
  }
  double height() const { return y_; }

 private:
  void title() {
    const auto& model = question_.model;
    drawing_.text(kLeft, 34, fmt::format("{} on {} x {}", model.name, question_.cluster.gpus, question_.cluster.gpu),
                  {.size = 20, .color = kInk, .bold = true});
    drawing_.text(kLeft, 56,
                  fmt::format("{}; {} micro-batches of {}; {} tokens/s, {:.1f} % of the peak", mesh_text(c_),
                              c_.microbatches, c_.micro_batch, format_count(plan_.tokens_per_second), 100 * plan_.mfu),
                  {.size = 13, .color = kFaint});
    y_ = 84;
  }

  void heading(const std::string& text, const std::string& note) {
    drawing_.text(kLeft, y_, text, {.size = 14, .color = kInk, .bold = true});
    drawing_.text(kLeft + text_width(text, 14) * 1.25 + 16, y_, note, {.size = 12, .color = kFaint});
    y_ += 14;
  }

  /// A row for each stage: nodes as boxes of GPUs, ranks of one tp group in one colour.
  void mesh() {
    const int64_t per_node = question_.cluster.gpus_per_node, per_stage = c_.gpus() / c_.pp;
    const int64_t shown = std::min(c_.pp, kMostStages);
    auto note = c_.tp > 1 ? fmt::format("{} neighbours of one colour share each layer (tp)", c_.tp)
                          : std::string("every square is a GPU");
    if (shown < c_.pp) note += fmt::format("; {} of {} stages are drawn", shown, c_.pp);
    heading("Mesh", note);
    const MemoryModel sizes(question_.model, question_.software, question_.precision);
    for (int64_t stage = 0; stage < shown; ++stage) {
      const auto layers = sizes.stage_layers(c_, stage);
      drawing_.text(kLeft, y_ + 18,
                    c_.pp > 1 ? fmt::format("stage {}: {} layers", stage, layers) : fmt::format("{} layers", layers),
                    {.size = 12, .color = kInk});
      row_of_nodes(stage * per_stage, per_stage, per_node);
      y_ += 30;
    }
    y_ += 20;
  }

  void row_of_nodes(int64_t first, int64_t count, int64_t per_node) {
    const int64_t in_box = std::min({per_node, count, int64_t{16}});
    const double square = in_box > 8 ? 8 : 14, box = static_cast<double>(in_box) * (square + 3) + 9;
    const int64_t boxes = (count + per_node - 1) / per_node, shown = std::min(boxes, kMostNodes);
    double x = kLeft + kLabels;
    for (int64_t node = 0; node < shown; ++node) {
      drawing_.rect(x, y_, box, 26, kBox, 4);
      for (int64_t gpu = 0; gpu < in_box; ++gpu) {
        const int64_t rank = first + node * per_node + gpu, group = rank / c_.tp;
        drawing_.rect(x + 6 + static_cast<double>(gpu) * (square + 3), y_ + 6, square, 14,
                      kGroups[static_cast<size_t>(group % 4)], 2);
      }
      x += box + 8;
    }
    if (shown < boxes) drawing_.text(x + 4, y_ + 18, fmt::format("... {} nodes", boxes), {.size = 12, .color = kFaint});
  }

  void pipeline() {
    // The shape of a long step is that of a short one: as many rounds of micro-batches as can be told apart.
    const int ranks = static_cast<int>(std::min(c_.pp, kMostStages));
    int64_t micro = std::min(c_.microbatches, std::max<int64_t>(kMostMicrobatches, 2 * ranks));
    if (c_.schedule == Schedule::kInterleaved) micro = std::max<int64_t>(ranks, micro / ranks * ranks);
    const CostModel cost(question_);
    const auto times = cost.layer(c_);
    double again = 0;
    if (c_.checkpointing == Checkpointing::kFull) again = times.forward + times.tp_forward + times.ep_forward;
    if (c_.checkpointing == Checkpointing::kSelective) again = times.selective;
    const auto schedule = make_pipeline_schedule(std::string(to_string(c_.schedule)), ranks, static_cast<int>(micro),
                                                 static_cast<int>(c_.chunks));
    const auto played =
        simulate(schedule, {.forward = times.forward + times.tp_forward + times.ep_forward,
                            .backward_input = times.backward_inputs + times.tp_backward + times.ep_backward + again,
                            .backward_weight = times.backward_weights});
    heading(fmt::format("Pipeline: {}", schedule_text(c_)),
            fmt::format("drawn with {} stages and {} micro-batches; the step has {} and {}", ranks, micro, c_.pp,
                        c_.microbatches));
    const double from = kLeft + kLabels, scale = (kRight - from) / played.total;
    for (int rank = 0; rank < ranks; ++rank) {
      drawing_.text(kLeft, y_ + 14, fmt::format("stage {}", rank), {.size = 12, .color = kInk});
      drawing_.rect(from, y_, kRight - from, 18, kBox);
      for (const auto& span : played.spans[static_cast<size_t>(rank)]) {
        if (!span.action.is_compute()) continue;
        drawing_.rect(from + span.start * scale, y_, std::max(0.5, (span.end - span.start) * scale - 0.6), 18,
                      color_of(span.action.kind));
      }
      y_ += 21;
    }
    std::vector<Part> colors{{"forward", 0, kForward}, {"backward", 0, kBackward}};
    if (c_.schedule == Schedule::kZB1P || c_.schedule == Schedule::kZBV)
      colors = {{"forward", 0, kForward}, {"gradients of inputs", 0, kBackward}, {"gradients of weights", 0, kWeights}};
    legend(colors);
  }

  static uint32_t color_of(PipelineAction::Kind kind) {
    if (kind == PipelineAction::Kind::kForward) return kForward;
    return kind == PipelineAction::Kind::kBackwardWeight ? kWeights : kBackward;
  }

  void legend(const std::vector<Part>& parts) {
    double x = kLeft + kLabels;
    for (const auto& part : parts) {
      const double width = 34 + text_width(part.name, 12) * 1.15;
      if (x + width > kRight) x = kLeft + kLabels, y_ += 18;
      drawing_.rect(x, y_ + 4, 11, 11, part.color, 2);
      drawing_.text(x + 16, y_ + 14, part.name, {.size = 12, .color = kFaint});
      x += width;
    }
    y_ += 46;
  }

  void bar(std::vector<Part> parts, double whole) {
    double x = kLeft + kLabels;
    const double scale = (kRight - x) / whole;
    drawing_.rect(x, y_, kRight - x, 24, kBox);
    for (auto& part : parts) {
      drawing_.rect(x, y_, part.value * scale, 24, part.color);
      x += part.value * scale;
    }
    y_ += 28;
  }

  void time() {
    heading("Time", fmt::format("of a step: {:.3g} s", plan_.cost.seconds()));
    static constexpr std::array<uint32_t, 10> kColors{0x2563eb, 0xf59e0b, 0x10b981, 0xef4444, 0x8b5cf6,
                                                      0x14b8a6, 0xec4899, 0x84cc16, 0x64748b, 0xa16207};
    std::vector<Part> parts;
    for (const auto& [name, seconds] : plan_.cost.parts()) {
      const double share = seconds / plan_.cost.seconds();
      if (share < 0.001) continue;
      parts.push_back({fmt::format("{} {:.1f} %", name, 100 * share), seconds, kColors[parts.size() % kColors.size()]});
    }
    bar(parts, plan_.cost.seconds());
    legend(parts);
  }

  void memory() {
    const auto& m = plan_.memory;
    heading("Memory", fmt::format("of a rank of stage {}: peak {} of {}", plan_.stage, format_bytes(m.peak),
                                  format_bytes(question_.cluster.memory)));
    std::vector<Part> parts{{"parameters", m.parameters, 0x2563eb},
                            {"gradients", m.gradients, 0x60a5fa},
                            {"optimizer", m.optimizer, 0x1e40af},
                            {"activations", m.activations, 0xf59e0b},
                            {"temporary", m.temporary, 0xa1a1aa}};
    std::erase_if(parts, [](const Part& part) { return part.value <= 0; });
    for (auto& part : parts) part.name += " " + format_bytes(part.value);
    double sum = 0;
    for (const auto& part : parts) sum += part.value;
    bar(parts, std::max(sum, question_.cluster.memory));
    legend(parts);
  }

  const PlanQuestion& question_;
  const Plan& plan_;
  const Candidate& c_;
  Drawing drawing_;
  double y_ = 0;
};

}  // namespace

Drawing picture_of(const PlanQuestion& question, const Plan& plan) {
  // Once to know how high it is.
  Painter measured(question, plan, 100);
  measured.paint();
  return Painter(question, plan, measured.height() - 16).paint();
}

}  // namespace levin::planner
