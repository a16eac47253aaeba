#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/trainer/context.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelCheckpoint = "ModelCheckpoint";

bool is_same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a == b || fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

}  // namespace

SaveLast::SaveLast(std::string_view text) {
  static const std::vector<std::string> known{"true", "false", "link"};
  if (text == "true")
    mode_ = Mode::kCopy;
  else if (text == "link")
    mode_ = Mode::kLink;
  else if (text != "false")
    fail_unknown(kModelCheckpoint, "save_last", text, known);
}

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options)
    : options_(std::move(options)),
      name_(options_.filename.empty() ? "{epoch}-{step}" : options_.filename, options_.auto_insert_metric_name),
      lower_is_better_(detail::lower_is_better(kModelCheckpoint, options_.mode)),
      every_n_epochs_(options_.every_n_epochs.value_or(0)),
      every_n_steps_(options_.every_n_train_steps.value_or(0)),
      dirpath_(options_.dirpath) {
  const auto& o = options_;
  if (!o.every_n_epochs && !o.every_n_train_steps && !o.train_time_interval) every_n_epochs_ = 1;
  LEVIN_CHECK(o.save_top_k >= -1, "[ModelCheckpoint] save_top_k is ", o.save_top_k,
              "; -1 keeps all, 0 none, n the best n");
  LEVIN_CHECK(every_n_epochs_ >= 0, "[ModelCheckpoint] every_n_epochs is ", every_n_epochs_, "; 0 or more is needed");
  LEVIN_CHECK(every_n_steps_ >= 0, "[ModelCheckpoint] every_n_train_steps is ", every_n_steps_,
              "; 0 or more is needed");
  LEVIN_CHECK(!o.train_time_interval || o.train_time_interval->seconds() >= 0,
              "[ModelCheckpoint] train_time_interval is negative");
  LEVIN_CHECK(
      (every_n_epochs_ > 0) + (every_n_steps_ > 0) + o.train_time_interval.has_value() <= 1,
      "[ModelCheckpoint] every_n_train_steps, train_time_interval and every_n_epochs exclude one another; use a "
      "ModelCheckpoint for each");
  LEVIN_CHECK(!o.monitor.empty() || o.save_top_k <= 1, "[ModelCheckpoint] save_top_k is ", o.save_top_k,
              " without a monitor; -1, 0 or 1 (the newest) can be kept without one");
  if (!options_.clock) options_.clock = detail::monotonic_seconds;
  if (!dirpath_.has_filename()) dirpath_ = dirpath_.parent_path();
}

std::string ModelCheckpoint::state_key() const {
  return fmt::format(
      "ModelCheckpoint{{monitor={}, mode={}, every_n_train_steps={}, every_n_epochs={}, train_time_interval={}}}",
      options_.monitor, options_.mode, every_n_steps_, every_n_epochs_,
      options_.train_time_interval ? options_.train_time_interval->to_string() : "none");
}

fs::path ModelCheckpoint::path_of(const std::string& name) const {
  return name.empty() ? fs::path() : dirpath_ / name;
}

fs::path ModelCheckpoint::best_model_path() const {
  return path_of(book_.best);
}

fs::path ModelCheckpoint::last_model_path() const {
  return path_of(book_.last);
}

std::vector<std::pair<fs::path, double>> ModelCheckpoint::best_k_models() const {
  std::vector<std::pair<fs::path, double>> models;
  for (const auto& kept : book_.best_k) models.emplace_back(path_of(kept.name), kept.score);
  return models;
}

StateDict ModelCheckpoint::state_dict() const {
  StateList best_k;
  for (const auto& kept : book_.best_k) best_k.push_back(StateDict{{"name", kept.name}, {"score", kept.score}});
  StateList gone;
  for (const auto& name : book_.gone) gone.emplace_back(name);
  StateDict state{{"dirpath", dirpath_.empty() ? "" : fs::absolute(dirpath_).lexically_normal().string()},
                  {"best_k_models", best_k},
                  {"best_model_path", book_.best},
                  {"last_model_path", book_.last},
                  {"ranked_at", book_.ranked_at},
                  {"last_at", book_.last_at},
                  {"from_validation", book_.from_validation},
                  {"waits", book_.waits},
                  {"gone", gone}};
  if (book_.best_score) state["best_model_score"] = *book_.best_score;
  if (book_.current_score) state["current_score"] = *book_.current_score;
  return state;
}

void ModelCheckpoint::load_state_dict(const StateDict& state) {
  const fs::path dir = state.at("dirpath").to_string();
  Book book;
  for (const auto& entry : state.at("best_k_models").to_list())
    book.best_k.push_back({entry.to_dict().at("name").to_string(), entry.to_dict().at("score").to_double()});
  book.best = state.at("best_model_path").to_string();
  book.last = state.at("last_model_path").to_string();
  book.ranked_at = state.at("ranked_at").to_int();
  book.last_at = state.at("last_at").to_int();
  book.from_validation = state.at("from_validation").to_bool();
  book.waits = state.at("waits").to_bool();
  if (const auto* gone = state.find("gone"))  // not in checkpoints of earlier versions
    for (const auto& name : gone->to_list()) book.gone.push_back(name.to_string());
  if (const auto* score = state.find("best_model_score")) book.best_score = score->to_double();
  if (const auto* score = state.find("current_score")) book.current_score = score->to_double();

  // A folder that was moved has the checkpoints in it; another folder has not.
  const auto is_here = [this](const std::string& name) {
    std::error_code error;
    return !name.empty() && fs::exists(dirpath_ / name, error);
  };
  bool here = is_same_place(dir, dirpath_) || is_here(book.best) || is_here(book.last);
  for (const auto& kept : book.best_k) here = here || is_here(kept.name);
  if (!here) {
    log_warning(
        fmt::format("checkpoints now go to \"{}\" and no longer to \"{}\": those kept there stay, and only the "
                    "path of the best one is remembered",
                    dirpath_.string(), dir.string()));
    const auto best = book.best.empty() ? std::string() : (dir / book.best).string();
    const bool from_validation = book.from_validation;
    book = {};
    book.best = best;
    book.from_validation = from_validation;
  }
  book_ = std::move(book);
}

void ModelCheckpoint::setup(TrainerContext& run, std::string_view stage) {
  // A test after fit still asks for the best checkpoint of that fit.
  if (options_.dirpath.empty() && (stage == "fit" || dirpath_.empty())) {
    const auto root = run.loggers().empty() ? run.plan().root_dir : run.log_dir();
    dirpath_ = run.fabric().broadcast((root / "checkpoints").string());
  }
  if (stage != "fit") return;
  // Every fit starts again; one that resumes from a checkpoint gets the book from there.
  book_ = {};
  validated_ = false;
  if (run.plan().fast_dev_run > 0 || (options_.save_top_k == 0 && !options_.save_last.is_on())) return;
  std::string failure;
  if (run.fabric().is_global_zero()) {
    try {
      check_writable(dirpath_);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  failure = run.fabric().broadcast(failure);
  LEVIN_CHECK(failure.empty(), failure);
}

bool ModelCheckpoint::saves_at_train_epoch_end(const TrainerContext& run) const {
  return options_.save_on_train_epoch_end ? *options_.save_on_train_epoch_end : detail::epoch_end_knows_all(run);
}

void ModelCheckpoint::on_train_start(TrainerContext& run) {
  seen_step_ = resumed_step_ = run.global_step();
  saved_time_ = options_.clock();
  timer_.restart();
  validated_ = run.progress().validated_at >= 0;
  // A user who names a checkpoint may go back, to before later ones that have the same names.
  if (run.resumes_last())
    remove_gone(run);
  else
    book_.gone.clear();
}

void ModelCheckpoint::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (every_n_steps_ == 0 && !options_.train_time_interval) return;
  // Between two optimizer steps there are gradients that no checkpoint holds.
  const int64_t step = run.global_step();
  if (step == seen_step_) return;
  // Several optimizers may step in one batch and pass over a multiple of n.
  bool due = every_n_steps_ > 0 && step / every_n_steps_ != seen_step_ / every_n_steps_;
  seen_step_ = step;
  if (options_.train_time_interval) {
    const double now = options_.clock();
    due = timer_.is_over(run.fabric(), now - saved_time_, options_.train_time_interval->seconds());
    if (due) {
      saved_time_ = now;
      timer_.restart();
    }
  }
  if (!due || detail::is_rehearsal(run)) return;
  if (!ranks()) return keep(run, true, {});
  const auto score = book_.from_validation ? std::nullopt : run.metric(options_.monitor);
  book_.waits = !score;
  keep(run, score.has_value(), score);
}

void ModelCheckpoint::on_validation_end(TrainerContext& run) {
  if (detail::is_rehearsal(run)) return;
  validated_ = true;
  if (book_.waits) {
    const auto score = run.metric(options_.monitor);
    if (!score) return;  // it may come with the end of the epoch
    book_.from_validation = true;
    book_.waits = false;
    return keep(run, true, score);
  }
  if (!saves_at_train_epoch_end(run)) on_epoch_trigger(run);
}

void ModelCheckpoint::on_train_epoch_end(TrainerContext& run) {
  if (detail::is_rehearsal(run)) return;
  if (book_.waits && !book_.from_validation) {
    const auto score = run.metric(options_.monitor);
    if (!score && validated_) detail::fail_missing_metric(kModelCheckpoint, options_.monitor, run);
    book_.waits = !score;
    if (score) keep(run, true, score);
  }
  if (saves_at_train_epoch_end(run)) on_epoch_trigger(run);
}

void ModelCheckpoint::on_epoch_trigger(TrainerContext& run) {
  if (every_n_epochs_ == 0 || (run.current_epoch() + 1) % every_n_epochs_ != 0) return;
  if (!ranks()) return keep(run, true, {});
  const auto score = run.metric(options_.monitor);
  if (!score) {
    if (validated_) detail::fail_missing_metric(kModelCheckpoint, options_.monitor, run);
    warn_once(detail::missing_metric_line(kModelCheckpoint, options_.monitor, run));
  }
  keep(run, score.has_value(), score);
}

void ModelCheckpoint::on_train_end(TrainerContext& run) {
  if (detail::is_rehearsal(run) || run.global_step() == 0) return;
  const bool has_trigger = every_n_epochs_ > 0 || every_n_steps_ > 0 || options_.train_time_interval;
  if (book_.best.empty() && options_.save_top_k != 0 && has_trigger) {
    const auto score = ranks() ? run.metric(options_.monitor) : std::nullopt;
    keep(run, true, score.value_or(std::numeric_limits<double>::quiet_NaN()));
    if (!book_.best.empty())
      log_info(fmt::format("no checkpoint was due in this run; its end was kept: {}", best_model_path().string()));
  }
  keep(run, false, {});
}

void ModelCheckpoint::on_exception(TrainerContext& run, const std::exception& error) {
  if (!options_.save_on_exception || !detail::can_save_on(error, run)) return;
  const int64_t step = run.global_step();
  if (step == 0 || step == book_.ranked_at || step == book_.last_at || !run.weights_are_finite()) return;
  const auto name = choose_name(run, {});
  if (options_.save_last.is_on()) book_.last = choose_last_name(run);
  book_.gone.push_back(name);  // when whoever resumes from it has gone further
  run.save_checkpoint(path_of(name), options_.save_weights_only, [this, &run, name] {
    if (options_.save_last.is_on()) point_last_at(run, name);
    log_info(fmt::format("the run ends by an exception; its state was kept: {}", path_of(name).string()));
  });
}

}  // namespace levin
