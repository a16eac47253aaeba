#include "levin/cli/train_command.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <map>

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "levin/cli/prediction_summary.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/seed.h"
#include "levin/core/words.h"
#include "levin/io/weights/safetensors.h"
#include "levin/trainer/callbacks/prediction_writer.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

struct TrainCommand {
  const char* name;
  const char* summary;
};
constexpr std::array kCommands{TrainCommand{"fit", "train a model"},
                               TrainCommand{"validate", "run one epoch over the validation data"},
                               TrainCommand{"test", "run one epoch over the test data"},
                               TrainCommand{"predict", "run inference; save or show the predictions"}};

constexpr const char* kConfigMark = "# A run of `";

/// Saves the resolved config next to the logs.
struct SaveConfig final : Callback {
  SaveConfig(std::string text, bool always) : text_(std::move(text)), always_(always) {}

  void setup(TrainerContext& run, std::string_view stage) override {
    if (stage != "fit" || !run.fabric().is_global_zero() || run.plan().fast_dev_run > 0 || run.plan().barebones) return;
    // Without loggers the folder is the current one, where a config.yaml of the user may lie.
    if (run.loggers().empty() && !always_) return;
    const auto path = run.log_dir() / "config.yaml";
    if (fs::exists(path) && !read_file(path, 1 << 20).starts_with(kConfigMark)) {
      run.print("config.yaml in ", run.log_dir().string(), " was not written by a run, so it is kept");
      return;
    }
    make_folder(run.log_dir());
    write_file(path, text_);
  }

 private:
  std::string text_;
  bool always_;
};

StateValue state_of(const config::Node& node) {
  if (node.is_list()) {
    StateList list;
    for (const auto& item : node.items) list.push_back(state_of(item));
    return list;
  }
  const auto& text = node.text;
  if (node.is_quoted) return text;
  if (text == "true" || text == "false") return text == "true";
  const char* end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto r = std::from_chars(text.data(), end, whole); r.ec == std::errc() && r.ptr == end) return whole;
  double real = 0;
  if (const auto r = std::from_chars(text.data(), end, real); r.ec == std::errc() && r.ptr == end) return real;
  return text;
}

StateDict state_of_part(const config::Config& config, std::string_view group) {
  StateDict state;
  for (const auto& [name, value] : config.values(group).entries)
    if (!value.is_null()) state[name] = state_of(value);
  return state;
}

/// What a model was made of belongs to its checkpoints, unless it says so itself.
void set_hparams(TrainProgram& program, const config::Config& config) {
  if (program.module().hparams.empty()) {
    auto& hparams = program.module().hparams;
    hparams = state_of_part(config, "model");
    for (const char* part : {"optimizer", "lr_scheduler"})
      if (auto chosen = state_of_part(config, part); !chosen.empty()) hparams[part] = std::move(chosen);
  }
  if (program.data() && program.data()->hparams.empty()) program.data()->hparams = state_of_part(config, "data");
}

/// The batches of each loader as one tensor under each name; those whose sizes differ stay apart.
NamedTensors gathered(const std::vector<std::vector<StepOutput>>& predictions) {
  NamedTensors out;
  for (size_t loader = 0; loader < predictions.size(); ++loader) {
    const auto prefix = predictions.size() > 1 ? fmt::format("loader_{}.", loader) : std::string();
    std::map<std::string, std::vector<Tensor>> parts;
    for (const auto& step : predictions[loader]) {
      if (step.loss.defined()) parts["prediction"].push_back(step.loss.cpu());
      for (const auto& [name, tensor] : step.extra) parts[name].push_back(tensor.cpu());
    }
    for (auto& [name, tensors] : parts) {
      const auto fits = [&](const Tensor& t) {
        return t.dim() > 0 && t.dim() == tensors[0].dim() && t.sizes().slice(1) == tensors[0].sizes().slice(1);
      };
      if (std::all_of(tensors.begin(), tensors.end(), fits)) {
        out.emplace_back(prefix + name, at::cat(tensors));
        continue;
      }
      for (size_t i = 0; i < tensors.size(); ++i) out.emplace_back(fmt::format("{}{}.{}", prefix, name, i), tensors[i]);
    }
  }
  return out;
}

void predict(TrainProgram& program, Trainer& trainer, const TrainConfig& asked) {
  const auto predictions =
      program.predict(trainer, {.ckpt_path = asked.ckpt_path, .return_predictions = !asked.output.empty()});
  if (asked.output.empty()) return;
  auto path = asked.output;
  // Every rank has predictions of its own samples.
  if (trainer.fabric().world_size() > 1)
    path.replace_filename(
        fmt::format("{}-rank{}{}", path.stem().string(), trainer.fabric().global_rank(), path.extension().string()));
  if (path.has_parent_path()) make_folder(path.parent_path());
  write_safetensors(path, gathered(predictions));
  trainer.fabric().print("Predictions: ", asked.output.string());
}

bool has_writer(const TrainerOptions& options) {
  return std::ranges::any_of(options.callbacks, [](const CallbackRef& callback) {
    return dynamic_cast<const PredictionWriter*>(callback.get().get()) != nullptr;
  });
}

std::string usage_of(const TrainSpec& spec, const config::Config& config, const std::string& about) {
  if (!about.empty()) return config.help(about);
  auto text = fmt::format("{}: {}\n\nUsage: {} [--config FILE] [--FLAG VALUE]...\n\n", spec.usage,
                          train_command_summary(spec.command), spec.usage);
  text += config::detail::help_line("--config FILE, -c FILE", "values from a YAML file; repeatable, the last wins");
  text += config::detail::help_line("--print-config", "print all values as YAML for --config, and exit");
  text +=
      config::detail::help_line("--help [ABOUT], -h [ABOUT]",
                                "print this help, or that of a section: trainer, model, data, optimizer, AdamW, ...");
  return text + "\n" + config.help() +
         "\nIn square brackets: the current value. Later sources override earlier ones:\n"
         "defaults, recipe, --config, LEVIN_TRAINER_<NAME> (for the trainer), flags.\n";
}

}  // namespace

const std::vector<std::string>& train_commands() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& command : kCommands) all.emplace_back(command.name);
    return all;
  }();
  return names;
}

std::string_view train_command_summary(std::string_view command) {
  for (const auto& one : kCommands)
    if (command == one.name) return one.summary;
  return {};
}

int run_train_command(const TrainSpec& spec, TrainProgram& program, const std::vector<std::string>& words,
                      const Args& args) {
  TrainConfig asked(spec, program);
  auto& config = asked.config();
  if (!spec.options.defaults.empty())
    config.add_recipe(spec.options.defaults, spec.recipe.empty() ? "defaults" : "recipe " + spec.recipe);
  const auto environment = config::environment_words();
  const auto wants =
      config.add_arguments(words, [&] { config.add_environment("LEVIN_TRAINER_", "trainer", environment); });
  config.finish();
  if (wants.help) {
    std::fputs(usage_of(spec, config, wants.help_about).c_str(), stdout);
    return 0;
  }
  asked.check();
  const auto header = [&] { return fmt::format("A run of `{}`. --config takes this file.", spec.usage); };
  if (wants.print_config) {
    std::fputs(config.to_yaml(header()).c_str(), stdout);
    return 0;
  }
  // The seed comes first: the config that is saved says which one it was.
  asked.seed = seed_everything(asked.seed, {.verbose = false});
  auto options = asked.trainer_options();
  if (spec.command == "fit")
    options.callbacks.emplace_back(
        std::make_shared<SaveConfig>(config.to_yaml(header()), !options.default_root_dir.empty()));
  if (spec.command == "predict" && asked.output.empty() && !has_writer(options))
    options.callbacks.emplace_back(std::make_shared<PredictionSummary>());
  Trainer trainer(std::move(options));
  trainer.launch(args);
  program.build(asked.configure());
  set_hparams(program, config);
  if (spec.command == "fit")
    program.fit(trainer, {.ckpt_path = asked.ckpt_path});
  else if (spec.command == "validate")
    program.validate(trainer, {.ckpt_path = asked.ckpt_path});
  else if (spec.command == "test")
    program.test(trainer, {.ckpt_path = asked.ckpt_path});
  else
    predict(program, trainer, asked);
  return 0;
}

}  // namespace levin::cli
