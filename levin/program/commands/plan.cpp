#include <cstdio>

#include "levin/core/error.h"
#include "levin/planner/explain.h"
#include "levin/planner/picture.h"
#include "levin/plots/drawing.h"
#include "levin/precision/precision.h"
#include "levin/program/command.h"

namespace levin::cli {
namespace {

struct PlanCommand {
  std::string model, gpu = "h100", link, node_link, precision = "bf16-mixed", svg;
  int64_t gpus = 8, gpus_per_node = 8, tokens_per_batch = 0, sequence = 0, top = 5;
  ByteCount memory;
  bool json = false;

  void describe(Flags& flags) {
    auto& name = flags.flag("model", model,
                            "model by name (gpt3-175b, llama-3-70b, gpt2, vit_l_16, ...), or a folder "
                            "with a config.json",
                            "NAME_OR_FOLDER", planner::planned_models());
    name.words_are_hints = true;
    flags.flag("gpus", gpus, "number of GPUs", "N");
    flags.flag("gpu", gpu, "kind of GPU: rates and links of the machines it is sold in", "NAME", planner::known_gpus());
    flags.flag("memory", memory, "memory of a GPU: 80GB [that of --gpu]", "BYTES");
    flags.flag("gpus-per-node", gpus_per_node, "GPUs of a node", "N");
    flags.flag("link", link, "between nodes, per GPU and second: 400Gb (bits) or 50GB [as sold with --gpu]", "RATE");
    flags.flag("node-link", node_link, "inside a node, per GPU and direction: 450GB [as sold with --gpu]", "RATE");
    flags.flag("tokens-per-batch", tokens_per_batch, "tokens of a step over all GPUs [by the size of the model]", "N");
    flags.flag("sequence", sequence, "tokens of a sequence [the model's own]", "N");
    auto& how = flags.flag("precision", precision, "as in Trainer", "NAME", known_precisions());
    how.words_are_hints = true;
    flags.flag("top", top, "how many plans are printed", "N");
    flags.flag("json", json, "print JSON");
    flags.flag("svg", svg, "draw the mesh, the pipeline, time and memory of the first plan (.svg or .png)", "FILE");
  }

  int run() {
    LEVIN_CHECK(svg.empty() || svg.ends_with(".svg") || svg.ends_with(".png"), "[levin plan] --svg \"", svg,
                "\" must end with .svg or .png");
    LEVIN_CHECK(tokens_per_batch >= 0 && tokens_per_batch <= int64_t{1} << 40, "[levin plan] --tokens-per-batch ",
                tokens_per_batch, " is not allowed (1 to ", int64_t{1} << 40, ")");
    planner::PlanQuestion question{
        .model = planner::model_shape(model, sequence),
        .cluster = planner::cluster_of(gpu, gpus, static_cast<double>(memory.bytes), gpus_per_node),
        .tokens_per_batch = tokens_per_batch,
        .precision = resolve_precision(precision, c10::DeviceType::CUDA).name,
        .top = top};
    if (!link.empty()) question.cluster.between.bandwidth = planner::link_bandwidth(link);
    if (!node_link.empty()) question.cluster.inside.bandwidth = planner::link_bandwidth(node_link);
    const auto plans = planner::search(question);
    std::fputs((json ? plans_json(question, plans) : plans_text(question, plans)).c_str(), stdout);
    if (!svg.empty()) write_drawing(svg, planner::picture_of(question, plans.best.front()));
    return 0;
  }
};

}  // namespace

Command plan_command() {
  return make_command<PlanCommand>("plan", "plan a large run: mesh, schedule, memory techniques");
}

}  // namespace levin::cli
