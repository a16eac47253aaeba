#include "levin/cli/callbacks.h"

#include <array>
#include <string>

#include "levin/core/error.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/model_checkpoint.h"
#include "levin/trainer/callbacks/model_summary.h"
#include "levin/trainer/callbacks/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/prediction_writer.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/trainer_fields.h"

namespace levin::config {

template <>
struct Codec<SaveLast> {
  static std::string type() { return "BOOL|link"; }
  static SaveLast read(const Node& node) {
    return node.text == "link" ? SaveLast("link") : SaveLast(detail::read_bool(node));
  }
  static Node write(const SaveLast& value) {
    return Node::of_text(value.is_link() ? "link" : value.is_on() ? "true" : "false");
  }
};

}  // namespace levin::config

namespace levin {

constexpr const char* kMode = "which of the metric is best";
constexpr const char* kVerbose = "say what it does";
constexpr const char* kDirpath = "the folder; by itself \"checkpoints\" beside the logs";

void fields(EarlyStoppingOptions& o, auto f) {
  f("monitor", o.monitor, "the metric to follow; must be given");
  f("min_delta", o.min_delta, "a change that is not larger is no improvement");
  f("patience", o.patience, "so many checks in a row without an improvement end the run");
  f("verbose", o.verbose, kVerbose);
  f("mode", o.mode, kMode, {"min", "max"});
  f("strict", o.strict, "a missing metric is an error");
  f("check_finite", o.check_finite, "a value that is nan or infinite ends the run");
  f("stopping_threshold", o.stopping_threshold, "a better value ends the run");
  f("divergence_threshold", o.divergence_threshold, "a worse value ends the run");
  f("check_on_train_epoch_end", o.check_on_train_epoch_end, "look after training, not after validation");
  f("log_rank_zero_only", o.log_rank_zero_only, "only rank 0 speaks");
}

void fields(ModelCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "a pattern such as {epoch}-{val_loss:.2f}");
  f("monitor", o.monitor, "the metric that says which are best; by itself the newest are");
  f("verbose", o.verbose, kVerbose);
  f("save_last", o.save_last, "keep the newest as last.ckpt too");
  f("save_top_k", o.save_top_k, "how many are kept; -1 all");
  f("save_on_exception", o.save_on_exception, "keep the state when an exception ends the run");
  f("save_weights_only", o.save_weights_only, "nothing to go on training from");
  f("mode", o.mode, kMode, {"min", "max"});
  f("auto_insert_metric_name", o.auto_insert_metric_name, "{epoch} becomes epoch=3, else 3");
  f("every_n_train_steps", o.every_n_train_steps, "optimizer steps between two");
  f("train_time_interval", o.train_time_interval, "time between two");
  f("every_n_epochs", o.every_n_epochs, "epochs between two");
  f("save_on_train_epoch_end", o.save_on_train_epoch_end, "after training, not after validation");
  f("enable_version_counter", o.enable_version_counter, "a name that is taken gets -v1, -v2");
}

void fields(OnExceptionCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "without .ckpt");
}

void fields(GradientAccumulationSchedulerOptions& o, auto f) {
  f("scheduling", o.scheduling, "epochs and over how many batches each accumulates: 0:8,4:4");
}

void fields(ModelSummaryOptions& o, auto f) {
  f("max_depth", o.max_depth, "how deep modules are listed; -1 everything");
}

void fields(TrainerProgressBarOptions& o, auto f) {
  f("refresh_rate", o.refresh_rate, "batches between two looks whether a drawing is due; 0: no bar");
  f("leave", o.leave, "finished bars stay on the terminal");
  f("live", o.live, "one line that is redrawn, or plain lines");
}

void fields(TimerOptions& o, auto f) {
  f("duration", o.duration, "the run ends then; by itself it is only measured");
  f("interval", o.interval, "when it looks", {"step", "epoch"});
  f("verbose", o.verbose, kVerbose);
}

void fields(SafetensorsPredictionWriterOptions& o, auto f) {
  f("output_dir", o.output_dir, "the folder; must be given");
  f("write_interval", o.write_interval, "a file for each batch, or one for each rank", {"batch", "epoch"});
}

}  // namespace levin

namespace levin::cli {
namespace {

struct Entry {
  const char* name;
  const char* help;
  config::AnyOptions (*options)();
  CallbackRef (*make)(const config::AnyOptions& options);
};

template <class T, class Options>
constexpr Entry callback(const char* name, const char* help) {
  return {name, help, [] { return config::AnyOptions(Options{}); },
          [](const config::AnyOptions& options) { return CallbackRef(std::make_shared<T>(options.get<Options>())); }};
}

/// All callbacks that need nothing but words.
constexpr std::array kCallbacks{
    callback<EarlyStopping, EarlyStoppingOptions>("EarlyStopping", "ends a run that gets no better"),
    callback<ModelCheckpoint, ModelCheckpointOptions>("ModelCheckpoint", "keeps the best or newest checkpoints"),
    callback<OnExceptionCheckpoint, OnExceptionCheckpointOptions>("OnExceptionCheckpoint",
                                                                  "keeps the state when an exception ends the run"),
    callback<GradientAccumulationScheduler, GradientAccumulationSchedulerOptions>(
        "GradientAccumulationScheduler", "accumulates over more or fewer batches, by epoch"),
    callback<ModelSummary, ModelSummaryOptions>("ModelSummary", "prints the model's layers"),
    callback<TrainerProgressBar, TrainerProgressBarOptions>("TrainerProgressBar", "shows how far the run is"),
    callback<Timer, TimerOptions>("Timer", "measures a run, or ends it"),
    callback<SafetensorsPredictionWriter, SafetensorsPredictionWriterOptions>("SafetensorsPredictionWriter",
                                                                              "writes what is predicted"),
};

}  // namespace

const std::vector<config::Class>& callback_classes() {
  static const std::vector<config::Class> classes = [] {
    std::vector<config::Class> all;
    for (const auto& entry : kCallbacks) all.push_back({entry.name, entry.help, entry.options});
    return all;
  }();
  return classes;
}

CallbackRef make_callback(const config::Chosen& chosen) {
  for (const auto& entry : kCallbacks)
    if (chosen.name == entry.name) return entry.make(chosen.options);
  throw Error("[config] \"" + chosen.name + "\" is not in the table it was chosen from");
}

}  // namespace levin::cli
