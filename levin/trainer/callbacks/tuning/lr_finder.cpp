#include "levin/trainer/callbacks/tuning/lr_finder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/plots/line_plot.h"
#include "levin/plots/sparkline.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {
namespace {

// Makes `lr` the rate that a scheduler's state starts from, wherever in it that stands.
void rebase(StateDict& state, double lr) {
  for (auto& [name, value] : state) {
    if (name == "base_lrs")
      value = StateList(value.to_list().size(), StateValue(lr));
    else if (value.is_dict())
      rebase(value.to_dict(), lr);
    else if (value.is_list()) {
      StateList list = value.to_list();
      for (auto& item : list)
        if (item.is_dict()) rebase(item.to_dict(), lr);
      value = std::move(list);
    }
  }
}

}  // namespace

std::optional<size_t> LearningRateSearch::suggested_index(size_t skip_begin, size_t skip_end) const {
  std::vector<size_t> kept;
  for (size_t i = skip_begin; i + skip_end < losses.size(); ++i)
    if (std::isfinite(losses[i])) kept.push_back(i);
  if (kept.size() < 2) return {};
  const auto slope = [&](size_t a, size_t b) {
    return (losses[kept[b]] - losses[kept[a]]) / (lrs[kept[b]] - lrs[kept[a]]);
  };
  std::optional<size_t> best;
  double steepest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kept.size(); ++i) {
    double gradient;
    if (i == 0) {
      gradient = slope(0, 1);
    } else if (i + 1 == kept.size()) {
      gradient = slope(i - 1, i);
    } else {
      // Second order for uneven distances: the slope on each side counts by the length of the other.
      const double before = lrs[kept[i]] - lrs[kept[i - 1]], after = lrs[kept[i + 1]] - lrs[kept[i]];
      gradient = (slope(i - 1, i) * after + slope(i, i + 1) * before) / (before + after);
    }
    if (gradient < steepest) {
      steepest = gradient;
      best = kept[i];
    }
  }
  return best;
}

std::optional<double> LearningRateSearch::suggestion(size_t skip_begin, size_t skip_end) const {
  const auto index = suggested_index(skip_begin, skip_end);
  return index ? std::optional(lrs[*index]) : std::nullopt;
}

LearningRateFinder::LearningRateFinder(LearningRateFinderOptions options) : options_(std::move(options)) {
  constexpr auto kWhat = "[LearningRateFinder] ";
  static const std::vector<std::string> known{"exponential", "linear"};
  if (std::ranges::find(known, options_.mode) == known.end())
    fail_unknown("LearningRateFinder", "mode", options_.mode, known);
  LEVIN_CHECK(std::isfinite(options_.min_lr) && options_.min_lr > 0, kWhat, "min_lr=", options_.min_lr,
              " must be a positive number");
  LEVIN_CHECK(std::isfinite(options_.max_lr) && options_.max_lr > options_.min_lr, kWhat, "max_lr=", options_.max_lr,
              " must be larger than min_lr=", options_.min_lr);
  LEVIN_CHECK(options_.num_training_steps >= 2, kWhat, "num_training_steps=", options_.num_training_steps,
              " must be at least 2");
  if (options_.early_stop_threshold)
    LEVIN_CHECK(*options_.early_stop_threshold > 0, kWhat, "early_stop_threshold=", *options_.early_stop_threshold,
                " must be positive");
}

double LearningRateFinder::lr_at(int64_t step) const {
  if (step == 0) return options_.min_lr;
  const double share = static_cast<double>(step + 1) / static_cast<double>(options_.num_training_steps);
  if (options_.mode == "linear") return options_.min_lr + share * (options_.max_lr - options_.min_lr);
  return options_.min_lr * std::pow(options_.max_lr / options_.min_lr, share);
}

void LearningRateFinder::on_fit_start(TrainerContext& run) {
  if (run.plan().fast_dev_run > 0) {
    log_info("LearningRateFinder: skipped, as fast_dev_run is on");
    return;
  }
  if (!run.ckpt_path().empty()) {
    log_info("LearningRateFinder: skipped, as the run resumes from a checkpoint");
    return;
  }
  LEVIN_CHECK(run.optimizers().size() == 1, "[LearningRateFinder] the module has ", run.optimizers().size(),
              " optimizers; it works with one");
  search(run);
  report(run);
  const auto lr = results_.suggestion();
  if (options_.update_attr && lr) apply(run, *lr);
}

// Every rank follows the losses of rank 0, so that all stop at the same step.
void LearningRateFinder::search(TrainerContext& run) {
  constexpr double kBeta = 0.98;
  results_ = {};
  const Optimizer optimizer = run.optimizers()[0];
  double average = 0, best = 0;
  run.tuning().run_trial({.steps = options_.num_training_steps,
                          .before_step =
                              [&](int64_t step) {
                                for (size_t group = 0; group < optimizer.num_groups(); ++group)
                                  optimizer.set_lr(lr_at(step), group);
                              },
                          .after_step =
                              [&](int64_t step, double loss) {
                                if (run.fabric().world_size() > 1) loss = run.fabric().broadcast(loss);
                                average = kBeta * average + (1 - kBeta) * loss;
                                const double smoothed = average / (1 - std::pow(kBeta, static_cast<double>(step + 2)));
                                results_.lrs.push_back(lr_at(step));
                                results_.losses.push_back(smoothed);
                                if (options_.early_stop_threshold && step > 0 &&
                                    !(smoothed <= *options_.early_stop_threshold * best))
                                  results_.stopped_early = true;
                                if (step == 0 || smoothed < best) best = smoothed;
                                return !results_.stopped_early;
                              }});
}

void LearningRateFinder::report(TrainerContext& run) {
  const auto index = results_.suggested_index();
  const auto steps = results_.lrs.size();
  const auto range = steps == 0
                         ? std::string("no step")
                         : fmt::format("{} steps from {:.3g} to {:.3g}{}", steps, results_.lrs.front(),
                                       results_.lrs.back(), results_.stopped_early ? ", where the loss diverged" : "");
  if (!index)
    log_warning("LearningRateFinder: " + range +
                " are too few for a suggestion; raise num_training_steps, or give a larger set of data");
  plot_path_.clear();
  if (steps < 2) return;
  const auto found = index ? fmt::format("lr {:.3g}", results_.lrs[*index]) : std::string("no suggestion");
  if (run.fabric().is_global_zero()) {
    plot_path_ = run.log_dir() / "lr_find.svg";
    check_writable(plot_path_.parent_path());
    const auto picture = picture_of(LinePlot{.title = "Learning rate search",
                                             .subtitle = range,
                                             .x_label = "learning rate",
                                             .y_label = "loss (smoothed)",
                                             .log_x = options_.mode == "exponential",
                                             .x = results_.lrs,
                                             .y = results_.losses,
                                             .mark = index,
                                             .mark_label = found});
    write_drawing(plot_path_, picture);
    write_drawing(std::filesystem::path(plot_path_).replace_extension(".png"), picture);
  }
  run.print("learning rate search: ", range, "; ", found, " (", plot_path_.string(), ")");
  run.print("  loss ", sparkline(results_.losses, 60));
}

// A scheduler that has begun already (a warm-up) keeps its fraction of the rate.
void LearningRateFinder::apply(TrainerContext& run, double lr) const {
  const auto& optimizer = run.optimizers()[0];
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    double* initial = optimizer.impl()->find_hyper(group, "initial_lr");
    const bool scheduled = initial && std::isfinite(*initial) && *initial > 0;
    optimizer.set_lr(scheduled ? lr * optimizer.lr(group) / *initial : lr, group);
    if (scheduled) *initial = lr;
  }
  for (auto& config : run.schedulers()) {
    auto state = config.scheduler.state_dict();
    rebase(state, lr);
    config.scheduler.load_state_dict(state);
  }
  auto& hparams = run.module().hparams;
  for (const std::string& name : {options_.attr_name, std::string("lr"), std::string("learning_rate")})
    if (!name.empty() && hparams.contains(name)) {
      hparams[name] = lr;
      break;
    }
  log_info(fmt::format("learning rate set to {:.6g}", lr));
}

}  // namespace levin
