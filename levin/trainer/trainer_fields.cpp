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
struct Codec<CompileMode> {
  static std::string type() { return "BOOL|graph|fuse"; }
  static CompileMode read(const Node& node) {
    if (node.is_null()) return {};
    const auto text = detail::read_text(node);
    return text == "graph" || text == "fuse" ? CompileMode(text) : CompileMode(detail::read_bool(node));
  }
  static Node write(const CompileMode& value) { return Node::of_text(value.to_string()); }
};

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

}  // namespace levin::config

namespace levin {

void fields(GradScalerOptions& o, auto f) {
  f("init_scale", o.init_scale, "initial loss scale");
  f("growth_factor", o.growth_factor, "factor by which the scale grows");
  f("backoff_factor", o.backoff_factor, "factor of the scale after an inf or NaN");
  f("growth_interval", o.growth_interval, "steps without inf or NaN before the scale grows");
}

void fields(Plugins& o, auto f) {
  f("cluster_environment", o.cluster_environment, "cluster environment that started the processes",
    environment_names());
  f("grad_scaler", o.grad_scaler, "loss scaler of 16-mixed");
}

void fields(TrainerOptions& o, auto f) {
  f("accelerator", o.accelerator, "accelerator to use", {"auto", "cpu", "cuda", "gpu"});
  f("strategy", o.strategy, "how the model is spread over the ranks");
  f("devices", o.devices, "devices per node: a number, -1 for all, or a list such as 0,2");
  f("num_nodes", o.num_nodes, "number of nodes");
  f("precision", o.precision, "precision: dtypes of parameters and computation");
  f("logger", o.logger, "loggers; default: TensorBoard and CSV");
  f("fast_dev_run", o.fast_dev_run,
    "run N batches of every stage without logs or checkpoints, to find bugs; true is 1");
  f("max_epochs", o.max_epochs,
    "maximum number of epochs; -1 is unlimited; default: 1000 if neither max_steps nor max_time is set");
  f("min_epochs", o.min_epochs, "minimum number of epochs, also when early stopping asks to stop");
  f("max_steps", o.max_steps, "maximum number of optimizer steps; -1 is unlimited");
  f("min_steps", o.min_steps, "minimum number of optimizer steps, also when early stopping asks to stop");
  f("max_time", o.max_time, "maximum training time: DD:HH:MM:SS, or a number with s, min, h, d");
  f("limit_train_batches", o.limit_train_batches,
    "training batches per epoch and rank: a number (10) or a fraction (0.1); default: all");
  f("limit_val_batches", o.limit_val_batches, "the same for validation; 0 skips it");
  f("limit_test_batches", o.limit_test_batches, "the same for test");
  f("limit_predict_batches", o.limit_predict_batches, "the same for predict");
  f("overfit_batches", o.overfit_batches, "overfit on this number or fraction of batches, to find bugs");
  f("val_check_interval", o.val_check_interval,
    "when to validate: every 0.25 epochs, 100 batches, '500 steps' or '30 min'; default: after each epoch");
  f("check_val_every_n_epoch", o.check_val_every_n_epoch,
    "validate every N epochs; null: val_check_interval counts across epochs");
  f("num_sanity_val_steps", o.num_sanity_val_steps,
    "validation batches to run before training; -1 runs all; default: 2");
  f("log_every_n_steps", o.log_every_n_steps, "optimizer steps between logged metrics; default: 50");
  f("enable_checkpointing", o.enable_checkpointing,
    "save the newest checkpoint if no ModelCheckpoint is given; default: true");
  f("enable_progress_bar", o.enable_progress_bar, "show a progress bar; default: true");
  f("enable_model_summary", o.enable_model_summary, "print a summary of the model before training; default: true");
  f("accumulate_grad_batches", o.accumulate_grad_batches, "batches per optimizer step (gradient accumulation)");
  f("gradient_clip_val", o.gradient_clip_val, "clip gradients to this norm or value; default: no clipping");
  f("gradient_clip_algorithm", o.gradient_clip_algorithm, "clip by the global norm, or each value; default: norm",
    {"norm", "value"});
  f("deterministic", o.deterministic,
    "use deterministic algorithms only; warn uses others with a warning; default: false");
  f("benchmark", o.benchmark, "cuDNN benchmark mode: try which algorithm is fastest; default: torch's setting");
  f("inference_mode", o.inference_mode, "use inference mode in validate, test and predict");
  f("use_distributed_sampler", o.use_distributed_sampler, "wrap the sampler so that each rank gets its own samples");
  f("detect_anomaly", o.detect_anomaly, "find the operation whose backward produced a NaN; slow");
  f("barebones", o.barebones,
    "turn off logs, checkpoints, progress bar and summary, to measure the overhead of the loop");
  f("plugins", o.plugins, "plugins");
  f("sync_batchnorm", o.sync_batchnorm, "synchronize batch norm across ranks");
  f("reload_dataloaders_every_n_epochs", o.reload_dataloaders_every_n_epochs,
    "reload the data loaders every N epochs; 0 is never");
  f("default_root_dir", o.default_root_dir, "folder for logs and checkpoints; default: the current folder");
  f("enable_autolog_hparams", o.enable_autolog_hparams, "log the hyperparameters");
  f("compile", o.compile, "capture steps in CUDA graphs and replay them; fuse: fuse their operators first");
  f("on_nonfinite", o.on_nonfinite,
    "what to do when the loss or the gradients of a step are NaN or inf: end the run, leave the step out, go back to "
    "the last good checkpoint, or warn",
    {"stop", "skip", "rollback", "warn"});
  f("max_rollbacks", o.max_rollbacks, "how often a run with on_nonfinite rollback goes back");
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
    if (field.name == "trainer.deterministic") hint(field, {"true", "false", "warn"});
    if (field.name == "trainer.compile") {
      hint(field, {"true", "false", "graph"});
      field.is_bool = true;
    }
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
