#include <fmt/format.h>
#include <torch/types.h>

#include "levin/cli/callbacks.h"
#include "levin/cli/optimizers.h"
#include "levin/cli/train_command.h"
#include "levin/core/error.h"
#include "levin/nn/tie.h"
#include "levin/profilers/registry.h"
#include "levin/trainer/trainer_fields.h"

namespace levin::cli {
namespace {

/// How long the run under way will be.
RunLength run_length(const TrainModuleBase& module) {
  if (!module.has_trainer()) return {};
  auto& run = module.trainer();
  RunLength length{.steps = run.estimated_stepping_batches()};
  if (run.plan().max_epochs > 0) length.epochs = run.plan().max_epochs;
  return length;
}

/// Of the parameters that are trained; those that do not decay are a group of their own.
Optimizer optimizer_of(const config::Chosen& chosen, const TrainModuleBase& module) {
  std::vector<Tensor> all, decayed, others;
  const auto* chooser = dynamic_cast<const ChoosesDecay*>(&module);
  for (const auto& [name, param, aliases] : named_unique_parameters(module)) {
    if (!param.requires_grad()) continue;
    all.push_back(param);
    (!chooser || chooser->decays(name) ? decayed : others).push_back(param);
  }
  if (decayed.empty() || others.empty()) return make_optimizer(chosen, std::move(all));
  auto made = make_optimizer(chosen, std::move(decayed));
  if (!made.impl()->find_hyper(0, "weight_decay")) return make_optimizer(chosen, std::move(all));
  made.add_param_group(std::move(others), {{"weight_decay", 0.0}});
  return made;
}

const std::vector<config::Class>& profiler_choices() {
  static const auto classes = [] {
    std::vector<config::Class> all;
    for (const auto& each : profiler_classes()) all.push_back({each.name, each.help, each.options});
    return all;
  }();
  return classes;
}

std::shared_ptr<Profiler> profiler_of(const config::Chosen& chosen) {
  for (const auto& each : profiler_classes())
    if (chosen.name == each.name) return each.make(chosen.options);
  throw Error("[config] \"" + chosen.name + "\" is not in the table it was chosen from");
}

}  // namespace

TrainConfig::TrainConfig(const TrainSpec& spec, TrainProgram& program) : spec_(spec), trainer_(spec.options.trainer) {
  std::vector<config::Field> fields;
  if (!spec_.recipe.empty()) {
    config::Field field{.name = "recipe", .help = "ready model with its data", .type = "NAME"};
    field.is_hidden = true;  // it stands in front of the flags
    field.read = [this](const config::Node& node) {
      if (node.text != spec_.recipe) throw config::BadValue("is not the recipe that was named");
    };
    field.write = [this] { return config::Node::of_text(spec_.recipe, true); };
    fields.push_back(std::move(field));
  }
  fields.push_back(config::make_field("seed", seed, "seed of all random generators; default: LEVIN_GLOBAL_SEED, or 0"));
  fields.back().aliases = {"seed_everything"};
  fields.push_back(config::make_field("ckpt_path", ckpt_path,
                                      spec_.command == "fit"
                                          ? "checkpoint to resume from: a path, last, best or hpc"
                                          : "checkpoint to load weights from: a path, last or best"));
  fields.back().words = {"last", "best", "hpc"};
  fields.back().words_are_hints = true;
  if (spec_.command == "predict")
    fields.push_back(config::make_field("output", output, "safetensors file for the predictions"));
  program.add_fields(fields);
  fields.push_back(config::make_class_field(
      "optimizer", "optimizer by name; default: configure_optimizers of the model", optimizer_classes(), optimizer_));
  fields.push_back(
      config::make_class_field("lr_scheduler", "learning rate scheduler by name", scheduler_classes(), scheduler_));
  const auto first_of_trainer = fields.size();
  add_trainer_fields(fields, trainer_);
  // What is chosen by name has its place among the options.
  const auto insert_before = [&](const char* name, config::Field field) {
    auto at = fields.begin() + static_cast<std::ptrdiff_t>(first_of_trainer);
    while (at != fields.end() && at->name != name) ++at;
    fields.insert(at, std::move(field));
  };
  insert_before("trainer.fast_dev_run", config::make_class_field("trainer.callbacks", "callbacks by name",
                                                                 callback_classes(), callbacks_, /*takes_many=*/true));
  insert_before(
      "trainer.detect_anomaly",
      config::make_class_field("trainer.profiler", "profiler by name; default: none", profiler_choices(), profiler_));
  config_ = std::make_unique<config::Config>(spec_.usage, std::move(fields),
                                             std::vector<config::Group>{{"model", "Model:"},
                                                                        {"data", "Data:"},
                                                                        {"optimizer", "Optimizer:"},
                                                                        {"lr_scheduler", "Learning rate scheduler:"},
                                                                        {"trainer", "Trainer:"}});
}

Configure TrainConfig::configure() const {
  if (optimizer_.empty()) return {};
  return [optimizer = optimizer_.front(), scheduler = scheduler_](TrainModuleBase& module) -> Optimizers {
    const auto made = optimizer_of(optimizer, module);
    if (scheduler.empty()) return made;
    return {made, make_scheduler(scheduler.front(), made, run_length(module))};
  };
}

void TrainConfig::fail_chosen(const config::Chosen& chosen, const std::exception& error) const {
  auto line = one_line(error);
  if (line.starts_with('[')) line = line.substr(1).replace(line.find(']') - 1, 1, ":");
  // The option that the refusal speaks of says who is to blame; else it is who named the class.
  auto where = chosen.origin.where;
  for (const auto& [name, origin] : chosen.said)
    if (line.find(" " + name + "=") != std::string::npos || line.find(" " + name + " ") != std::string::npos)
      where = origin.where;
  throw Error(fmt::format("[{}] {}{}", spec_.usage, where.empty() ? "" : where + ": ", line));
}

void TrainConfig::check() const {
  LEVIN_CHECK(scheduler_.empty() || !optimizer_.empty(), "[", spec_.usage, "] ", scheduler_.front().origin.where,
              ": a scheduler needs an optimizer chosen by name too (--optimizer NAME)");
  Optimizer optimizer;
  if (!optimizer_.empty()) {
    try {
      optimizer = make_optimizer(optimizer_.front(), {torch::zeros({1}, torch::requires_grad())});
    } catch (const std::exception& error) {
      fail_chosen(optimizer_.front(), error);
    }
  }
  if (!scheduler_.empty()) {
    try {
      make_scheduler(scheduler_.front(), optimizer, {.steps = 1000, .epochs = 1000});
    } catch (const std::exception& error) {
      fail_chosen(scheduler_.front(), error);
    }
  }
  if (!profiler_.empty()) {
    try {
      profiler_of(profiler_.front());
    } catch (const std::exception& error) {
      fail_chosen(profiler_.front(), error);
    }
  }
  for (const auto& chosen : callbacks_) {
    try {
      make_callback(chosen);
    } catch (const std::exception& error) {
      fail_chosen(chosen, error);
    }
  }
}

TrainerOptions TrainConfig::trainer_options() const {
  auto options = trainer_;
  for (const auto& chosen : callbacks_) options.callbacks.push_back(make_callback(chosen));
  if (!profiler_.empty()) options.profiler = profiler_of(profiler_.front());
  return options;
}

}  // namespace levin::cli
