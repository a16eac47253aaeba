#include "levin/trainer/trainer_fields.h"

#include <algorithm>
#include <string>

#include "levin/core/words.h"
#include "levin/environments/environment.h"
#include "levin/precision/precision.h"
#include "levin/strategies/choice.h"

namespace levin::config {
namespace {

std::string one_text(const Node& node) {
  if (!node.is_list()) return detail::read_text(node);
  std::string text;
  for (const auto& item : node.items) text += (text.empty() ? "" : ",") + detail::read_text(item);
  return text;
}

}  // namespace

template <>
struct Codec<Deterministic> {
  static std::string type() { return "BOOL|warn"; }
  static Deterministic read(const Node& node) {
    if (node.is_null()) return {};
    const auto text = detail::read_text(node);
    return text == "warn" ? Deterministic(text) : Deterministic(detail::read_bool(node));
  }
  static Node write(const Deterministic& value) { return value.is_set() ? Node::of_text(value.to_string()) : Node(); }
};

template <>
struct Codec<Devices> {
  static std::string type() { return "N|LIST|auto"; }
  static Devices read(const Node& node) {
    if (node.is_null()) return {};
    const auto text = one_text(node);
    // A list of one is a device, not a count.
    return node.is_list() && node.items.size() == 1 ? Devices(text + ",") : Devices(text);
  }
  static Node write(const Devices& value) {
    const bool one = value.is_list() && value.text().find(',') == std::string::npos;
    return Node::of_text(value.text() + (one ? "," : ""));
  }
};

template <>
struct Codec<StrategyChoice> {
  static std::string type() { return "NAME"; }
  static StrategyChoice read(const Node& node) {
    if (node.is_null()) return {};
    StrategyChoice choice(detail::read_text(node));
    make_strategy(choice);  // refuses a name that is not known
    return choice;
  }
  static Node write(const StrategyChoice& value) { return Node::of_text(value.name()); }
};

template <>
struct Codec<LoggerChoice> {
  static std::string type() { return "BOOL|NAME,..."; }
  static LoggerChoice read(const Node& node) {
    if (node.is_null()) return {};
    const auto text = one_text(node);
    if (text == "true" || text == "false") return text == "true";
    const auto known = LoggerChoice::known();
    for (const auto& item : detail::read_items(Node::of_text(text)))
      if (std::find(known.begin(), known.end(), item.text) == known.end()) {
        const auto nearest = nearest_word(item.text, known);
        throw BadValue("names a logger that is not known" +
                       (nearest.empty() ? std::string() : "; did you mean \"" + nearest + "\"?"));
      }
    return text;
  }
  static Node write(const LoggerChoice& value) {
    if (!value.is_set() || !value.loggers().empty()) return {};
    if (!value.names().empty()) return Node::of_text(value.names());
    return Node::of_text(value.is_off() ? "false" : "true");
  }
};

template <>
struct Codec<ProfilerChoice> {
  static std::string type() { return "NAME"; }
  static ProfilerChoice read(const Node& node) { return ProfilerChoice(detail::read_text(node)); }
  static Node write(const ProfilerChoice& value) {
    return value.name().empty() ? Node() : Node::of_text(value.name(), true);
  }
};

}  // namespace levin::config

namespace levin {

void fields(GradScalerOptions& o, auto f) {
  f("init_scale", o.init_scale, "what the loss is multiplied with at first");
  f("growth_factor", o.growth_factor, "the scale grows by this");
  f("backoff_factor", o.backoff_factor, "after an inf or nan it shrinks by this");
  f("growth_interval", o.growth_interval, "steps without inf and nan before it grows");
}

void fields(Plugins& o, auto f) {
  f("cluster_environment", o.cluster_environment, "who started the processes", environment_names());
  f("grad_scaler", o.grad_scaler, "the loss scaler of 16-mixed");
}

void fields(TrainerOptions& o, auto f) {
  f("accelerator", o.accelerator, "what to run on", {"auto", "cpu", "cuda", "gpu"});
  f("strategy", o.strategy, "how the model is spread over processes");
  f("devices", o.devices, "processes on each node: a count, -1 for all, or device numbers such as 0,2");
  f("num_nodes", o.num_nodes, "machines");
  f("precision", o.precision, "dtypes of parameters and computation");
  f("logger", o.logger, "where metrics go; by itself TensorBoard and metrics.csv");
  f("fast_dev_run", o.fast_dev_run,
    "so many batches of everything, without logs or checkpoints, to see whether it runs; true is one");
  f("max_epochs", o.max_epochs, "epochs to train; -1 without end; by itself 1000 when nothing else ends the run");
  f("min_epochs", o.min_epochs, "a request to stop waits until then");
  f("max_steps", o.max_steps, "optimizer steps to train; -1 without end");
  f("min_steps", o.min_steps, "a request to stop waits until then");
  f("max_time", o.max_time, "DD:HH:MM:SS, or a number with s, min, h, d");
  f("limit_train_batches", o.limit_train_batches, "batches of an epoch, on each rank: 10, or 0.1 of them");
  f("limit_val_batches", o.limit_val_batches, "the same for validation; 0 leaves it out");
  f("limit_test_batches", o.limit_test_batches, "the same for test");
  f("limit_predict_batches", o.limit_predict_batches, "the same for predict");
  f("overfit_batches", o.overfit_batches,
    "train and validate on these few batches, to see whether the model can learn them");
  f("val_check_interval", o.val_check_interval,
    "when to validate: 0.25 of an epoch, 100 batches, '500 steps', '30 min'");
  f("check_val_every_n_epoch", o.check_val_every_n_epoch,
    "validate in every n-th epoch; null: val_check_interval counts on across epochs");
  f("num_sanity_val_steps", o.num_sanity_val_steps,
    "batches of validation to try before training; -1 all; by itself 2");
  f("log_every_n_steps", o.log_every_n_steps, "optimizer steps between two rows of metrics; by itself 50");
  f("enable_checkpointing", o.enable_checkpointing, "keep the newest checkpoint when no ModelCheckpoint is given");
  f("enable_progress_bar", o.enable_progress_bar, "show a progress bar");
  f("enable_model_summary", o.enable_model_summary, "print a summary of the model first");
  f("accumulate_grad_batches", o.accumulate_grad_batches, "batches whose gradients make one optimizer step");
  f("gradient_clip_val", o.gradient_clip_val, "gradients are cut to this; off when not set");
  f("gradient_clip_algorithm", o.gradient_clip_algorithm, "all gradients together, or each element", {"norm", "value"});
  f("deterministic", o.deterministic, "only deterministic algorithms; warn runs the others and says so");
  f("benchmark", o.benchmark, "let cuDNN try which algorithm is fastest");
  f("inference_mode", o.inference_mode, "validate, test and predict in inference mode");
  f("use_distributed_sampler", o.use_distributed_sampler, "give each rank its own part of the data");
  f("profiler", o.profiler, "what the run spends its time on");
  f("detect_anomaly", o.detect_anomaly, "name the operation whose backward made a nan; slow");
  f("barebones", o.barebones, "nothing but the loop, to measure it");
  f("plugins", o.plugins, "parts that are seldom replaced");
  f("sync_batchnorm", o.sync_batchnorm, "batch norm over the batches of all ranks");
  f("reload_dataloaders_every_n_epochs", o.reload_dataloaders_every_n_epochs,
    "ask for the loaders anew every n epochs");
  f("default_root_dir", o.default_root_dir, "where logs and checkpoints go; by itself the current folder");
  f("enable_autolog_hparams", o.enable_autolog_hparams, "give the hyperparameters to the loggers");
}

namespace {

void hint(config::Field& field, std::vector<std::string> words) {
  field.words = std::move(words);
  field.words_are_hints = true;
}

}  // namespace

void add_trainer_fields(std::vector<config::Field>& into, TrainerOptions& options) {
  const auto first = into.size();
  config::add_fields(into, options, "trainer.");
  for (size_t i = first; i < into.size(); ++i) {
    auto& field = into[i];
    if (field.name == "trainer.strategy") hint(field, known_strategies());
    if (field.name == "trainer.logger") hint(field, LoggerChoice::known());
    if (field.name == "trainer.profiler") hint(field, {"simple"});
    if (field.name == "trainer.deterministic") hint(field, {"true", "false", "warn"});
    if (field.name == "trainer.precision") {
      hint(field, known_precisions());
      field.read = [at = &options.precision](const config::Node& node) {
        auto word = config::detail::read_text(node);
        if (!word.empty()) resolve_precision(word, c10::DeviceType::CUDA);  // refuses a word that is not known
        *at = word.empty() ? "32-true" : word;
      };
    }
    if (field.name == "trainer.fast_dev_run") {
      field.type = "BOOL|N";
      field.is_bool = true;
      field.read = [at = &options.fast_dev_run](const config::Node& node) {
        if (node.text == "true" || node.text == "false")
          *at = node.text == "true";
        else
          *at = config::Codec<int64_t>::read(node);
      };
    }
  }
}

}  // namespace levin
