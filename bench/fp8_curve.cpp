// Whether training in float8 learns as training in bfloat16 does: the same model from the same seed on the same
// batches, once in bf16-mixed and once in fp8-mixed. A decoder learns sequences with a structure (each is a walk over
// the tokens with a stride of its own, and noise), a ViT the shapes of drawn pictures, a tenth with random labels.
//   fp8_curve [--steps 300] [--model decoder,vit] [--window 50] [--recipe delayed|current|row] [--accelerator auto]
//             [--margin 0] [--gradient-margin 3] [--orders 1] [--small] [--no-floor] [--json FILE] [--svg FILE]
// Prints, for each model, a line of JSON with the largest difference of the running means of both losses, relative to
// the mean in bf16-mixed, from the first full window on, and the largest number of steps by which one curve is behind
// the other; the target is 1 %. On the CPU float8 is emulated.
// A loss that falls fast is sensitive to every rounding. How much is shown by two more curves: bf16-mixed with the
// samples of each batch in another order (the same loss and gradients, added up in another order), and 32-true.
// --no-floor leaves them out. --orders N takes the mean of N orders for each curve. --small takes models that a CPU can
// train.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "levin/data/cifar.h"
#include "levin/levin.h"
#include "levin/plots/curves.h"

namespace {

using at::Tensor;
using Losses = std::vector<double>;

struct Settings {
  int64_t steps = 300;
  size_t window = 50;
  levin::kernels::Fp8Options fp8;
  std::string accelerator = "auto";
  bool small = false;
  /// Samples stand in another order within each batch: the same loss and gradients, added up in another order.
  int64_t order = 0;
};

levin::FabricOptions options_of(const Settings& settings, const std::string& precision) {
  levin::FabricOptions options{.accelerator = settings.accelerator, .devices = 1, .precision = precision};
  options.plugins.fp8 = settings.fp8;
  return options;
}

/// Losses of all steps. `batch_of` gives the batch of a step on the CPU, the same in every run.
template <class Model, class BatchOf, class LossOf>
Losses train(const Settings& settings, levin::Fabric& fabric, const Model& model, BatchOf batch_of, LossOf loss_of) {
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 5e-4}));
  net->train();
  std::vector<Tensor> losses;
  for (int64_t step = 0; step < settings.steps; ++step) {
    auto given = batch_of(step);
    if (settings.order > 0) {
      torch::manual_seed(1000000 * settings.order + step);
      const auto order = torch::randperm(given.begin()->second.size(0));
      for (auto& [name, tensor] : given) tensor = tensor.index_select(0, order);
    }
    auto batch = fabric.to_device(std::move(given));
    const auto loss = loss_of(net, batch);
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.detach().to(at::kDouble));
  }
  const auto all = at::stack(losses).cpu();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

Losses decoder_losses(const Settings& settings, const std::string& precision) {
  const int64_t tokens_known = settings.small ? 64 : 256, length = settings.small ? 32 : 128,
                samples = settings.small ? 16 : 32;
  levin::Fabric fabric(options_of(settings, precision));
  fabric.launch();
  torch::manual_seed(0);
  auto model = levin::models::Decoder(levin::models::DecoderOptions{.vocab_size = tokens_known,
                                                                    .max_positions = length,
                                                                    .num_layers = settings.small ? 3 : 4,
                                                                    .num_heads = settings.small ? 2 : 4,
                                                                    .hidden_dim = settings.small ? 64 : 256});
  const auto batch_of = [=](int64_t step) {
    torch::manual_seed(1000 + step);
    const auto stride = torch::randint(1, 8, {samples, 1});
    auto tokens =
        (torch::randint(0, tokens_known, {samples, 1}) + stride * torch::arange(length)).remainder(tokens_known);
    const auto noise = torch::rand({samples, length}) < 0.05;
    tokens = torch::where(noise, torch::randint(0, tokens_known, {samples, length}), tokens);
    return levin::Batch{{"tokens", tokens}, {"next", levin::models::next_tokens(tokens)}};
  };
  return train(settings, fabric, model, batch_of,
               [](const auto& net, levin::Batch& batch) { return net(batch["tokens"], batch["next"]); });
}

Losses vit_losses(const Settings& settings, const std::string& precision) {
  constexpr int64_t kBatch = 64;
  levin::Fabric fabric(options_of(settings, precision));
  fabric.launch();
  torch::manual_seed(0);
  auto model = levin::models::vit({.image_size = 32,
                                   .patch_size = settings.small ? 8 : 4,
                                   .num_layers = settings.small ? 4 : 6,
                                   .num_heads = settings.small ? 2 : 4,
                                   .hidden_dim = settings.small ? 64 : 256,
                                   .mlp_dim = settings.small ? 256 : 1024,
                                   .num_classes = 10});
  const auto drawn = levin::draw_color_shapes(8192, 1).train.tensors();
  const auto images = drawn["image"], labels = drawn["label"];
  const auto batch_of = [&](int64_t step) {
    torch::manual_seed(1000 + step);
    const auto rows = torch::randint(0, images.size(0), {kBatch});
    // A loss that goes to 0 has no relative difference to speak of.
    const auto label =
        torch::where(torch::rand({kBatch}) < 0.1, torch::randint(0, 10, {kBatch}), labels.index_select(0, rows));
    return levin::Batch{{"image", images.index_select(0, rows).to(at::kFloat).div(127.5).sub(1)}, {"label", label}};
  };
  return train(settings, fabric, model, batch_of, [](const auto& net, levin::Batch& batch) {
    return levin::cross_entropy(net(batch["image"]), batch["label"]);
  });
}

/// Means of the last `window` steps, from the first full window on.
Losses running_means(const Losses& losses, size_t window) {
  Losses means;
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i] - (i >= window ? losses[i - window] : 0);
    if (i + 1 >= window) means.push_back(sum / static_cast<double>(window));
  }
  return means;
}

/// How many steps `others` is behind or ahead of `means` at step i: the nearest place where `means` has that loss. 0
/// where it has it nowhere, as at the end.
double lag_at(const Losses& means, const Losses& others, size_t i) {
  double best = std::numeric_limits<double>::infinity();
  for (size_t j = 0; j + 1 < means.size(); ++j) {
    const double from = means[j] - others[i], to = means[j + 1] - others[i];
    if (from * to > 0) continue;
    const double place = static_cast<double>(j) + (from == to ? 0 : from / (from - to));
    best = std::min(best, std::abs(place - static_cast<double>(i)));
  }
  return std::isinf(best) ? 0 : best;
}

/// How far a curve is away from another: the largest difference in percent of that, the difference at the end, and the
/// largest number of steps between the same loss on both.
struct Distance {
  double worst = 0, end = 0, steps = 0;
  Distance(const Losses& means, const Losses& others) {
    for (size_t i = 0; i < means.size(); ++i) {
      end = 100 * std::abs(others[i] / means[i] - 1);
      worst = std::isnan(end) ? end : std::max(worst, end);
      steps = std::max(steps, lag_at(means, others, i));
    }
  }
};

using LossesOf = Losses (*)(const Settings&, const std::string&);

/// The running means, averaged over trainings in `count` orders of the samples from the first one on.
Losses mean_curve(Settings settings, LossesOf losses_of, const std::string& precision, int64_t first, int64_t count) {
  Losses sum;
  for (settings.order = first; settings.order < first + count; ++settings.order) {
    const auto means = running_means(losses_of(settings, precision), settings.window);
    if (sum.empty()) sum.resize(means.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += means[i] / static_cast<double>(count);
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    Settings settings;
    settings.steps = args.get("steps", int64_t{300});
    settings.window = static_cast<size_t>(args.get("window", int64_t{50}));
    settings.accelerator = args.get("accelerator", std::string("auto"));
    const auto models = args.get("model", std::string("decoder,vit"));
    const auto recipe = args.get("recipe", std::string("delayed"));
    settings.small = args.has("small");
    settings.fp8.gradient_margin = static_cast<int>(args.get("gradient-margin", settings.fp8.gradient_margin));
    settings.fp8.margin = static_cast<int>(args.get("margin", settings.fp8.margin));
    const auto orders = args.get("orders", int64_t{1});
    const bool with_floor = !args.has("no-floor");
    const auto json_file = args.get("json", std::string()), svg_file = args.get("svg", std::string());
    args.check_all_used();
    const std::vector<std::string> recipes{"delayed", "current", "row"};
    const auto found = std::find(recipes.begin(), recipes.end(), recipe);
    if (found == recipes.end()) levin::fail_unknown("fp8_curve", "recipe", recipe, recipes);
    settings.fp8.recipe = static_cast<levin::kernels::Fp8Recipe>(found - recipes.begin());
    LEVIN_CHECK(orders >= 1, "[fp8_curve] --orders must be 1 or more, got ", orders);
    LEVIN_CHECK(settings.window >= 1 && static_cast<int64_t>(settings.window) <= settings.steps,
                "[fp8_curve] --window must be 1 to the number of steps, got ", settings.window);

    auto all = nlohmann::json::array();
    std::vector<levin::CurvePanel> panels;
    for (const auto& [name, losses_of] :
         std::vector<std::pair<std::string, LossesOf>>{{"decoder", decoder_losses}, {"vit", vit_losses}}) {
      if (("," + models + ",").find("," + name + ",") == std::string::npos) continue;
      const auto sixteen = mean_curve(settings, losses_of, "bf16-mixed", 0, orders),
                 eight = mean_curve(settings, losses_of, "fp8-mixed", 0, orders);
      nlohmann::json line{{"curve", name},      {"recipe", recipe},       {"steps", settings.steps},
                          {"orders", orders},   {"bf16", sixteen.back()}, {"fp8", eight.back()},
                          {"target_percent", 1}};
      const auto compare = [&](const std::string& with, const Losses& curve) {
        const Distance distance(sixteen, curve);
        line[with] = {{"worst_percent", distance.worst}, {"end_percent", distance.end}, {"steps", distance.steps}};
      };
      compare("fp8-mixed", eight);
      if (with_floor) {
        compare("bf16-mixed in other orders", mean_curve(settings, losses_of, "bf16-mixed", orders, orders));
        compare("32-true", mean_curve(settings, losses_of, "32-true", 0, orders));
      }
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
      line["curves"] = {{"bf16-mixed", sixteen}, {"fp8-mixed", eight}};
      all.push_back(std::move(line));
      std::vector<double> x(sixteen.size());
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
      panels.push_back(
          {.title = name,
           .x_label = "step",
           .curves = {{.name = "bf16-mixed", .x = x, .y = sixteen}, {.name = "fp8-mixed", .x = x, .y = eight}}});
    }
    LEVIN_CHECK(!panels.empty(), "[fp8_curve] --model knows decoder and vit, got \"", models, "\"");
    if (!json_file.empty()) std::ofstream(json_file) << all.dump() << '\n';
    if (!svg_file.empty())
      levin::write_drawing(svg_file, levin::curves_picture("Loss in bfloat16 and in float8",
                                                           "running means, the same seed and batches", panels));
  });
}
