// A run with everything that a resume must bring back, which dies or is signalled wherever it is told to.
//   resume_probe --out FOLDER [--job fit|validate|test|predict] [--ckpt_path PATH|last] [--devices N]
//                [--scheduler step|plateau|plateau_step] [--max_steps N] [--pause MS] [--at EVENT:N:SIGNAL] [--rank R]
//                [--to self|parent] [--handler]
// At the N-th EVENT of this process (rank R alone) the signal (KILL, INT, TERM, USR; with a 2 behind it twice) is sent
// to it, or to the launcher above it. The end of the run is written to FOLDER/final.ckpt, and the number of events is
// printed.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "levin/levin.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/trainer.h"

namespace {

/// Where the signal is due.
struct Fault {
  std::string event;
  int64_t count = 0;
  int signal = 0;
  bool twice = false;
  bool to_parent = false;
  std::map<std::string, int64_t> seen;

  void read(const std::string& text) {
    const auto first = text.find(':'), second = text.find(':', first + 1);
    LEVIN_CHECK(second != std::string::npos, "[probe] --at \"", text, "\" is not EVENT:N:SIGNAL");
    event = text.substr(0, first);
    count = std::stoll(text.substr(first + 1, second - first - 1));
    auto name = text.substr(second + 1);
    twice = name.ends_with('2');
    if (twice) name.pop_back();
    const std::map<std::string, int> signals{{"KILL", SIGKILL}, {"INT", SIGINT}, {"TERM", SIGTERM}, {"USR", SIGUSR1}};
    signal = signals.at(name);
  }
};
Fault fault;
/// Of each batch of training, test and prediction.
std::chrono::milliseconds batch_pause{0};

void mark(const char* event) {
  if (++fault.seen[event] != fault.count || fault.event != event) return;
  if (fault.signal != SIGKILL) {
    std::puts("signalled");
    std::fflush(stdout);
  }
  for (int i = 0; i < (fault.twice ? 2 : 1); ++i) ::kill(fault.to_parent ? ::getppid() : ::getpid(), fault.signal);
}

}  // namespace

// The moments between the files of a checkpoint, and around the renames that end it. Nothing is synced: a process that
// is killed loses nothing that it has written.
extern "C" int fsync(int) {
  mark("file");
  return 0;
}
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  mark("rename");
  const auto result = ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  const int error = errno;
  mark("rename");
  errno = error;
  return static_cast<int>(result);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

namespace {

using namespace levin;

/// Samples with noise from the default generator: what a resume gets wrong when the generator is not where it was.
struct NoisyPoints {
  explicit NoisyPoints(int64_t n) : x(torch::empty({n, 8})), y(torch::empty({n}, torch::kLong)) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < 8; ++j) x[i][j] = std::sin(0.7 * static_cast<double>(i * 8 + j));
      y[i] = (i * 7 + i / 3) % 3;
    }
  }
  int64_t size() const { return x.size(0); }
  Batch get(int64_t i) const { return {{"x", x[i] + 0.1 * torch::randn({8})}, {"y", y[i]}}; }
  Tensor x, y;
};

struct Module : TrainModule {
  explicit Module(std::string chosen)
      : a(register_module("a", torch::nn::Linear(8, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        b(register_module("b", torch::nn::Linear(16, 3))),
        scheduler(std::move(chosen)) {}

  Tensor loss_of(const Batch& batch) { return cross_entropy(b(dropout(torch::relu(norm(a(batch["x"]))))), batch["y"]); }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    mark("forward");
    std::this_thread::sleep_for(batch_pause);
    auto loss = loss_of(batch);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    log("worst", loss, {.on_step = false, .on_epoch = true, .reduce_fx = "max"});
    return loss;
  }
  void on_before_backward(const Tensor&) override { mark("backward"); }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { mark("batch_end"); }
  void on_train_epoch_end() override {
    mark("epoch_end");
    log("epoch_draw", torch::rand({}));
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    mark(trainer().sanity_checking() ? "sanity_batch" : "val_batch");
    auto loss = loss_of(batch) + 0.01 * torch::rand({});
    log("val_loss", loss, {.sync_dist = true});
    log("val_step", loss, {.on_step = true, .on_epoch = false});
    return loss;
  }
  StepOutput test_step(const Batch& batch, const StepInfo&) override {
    mark("test_batch");
    std::this_thread::sleep_for(batch_pause);
    return loss_of(batch);
  }
  StepOutput predict_step(const Batch& batch, const StepInfo&) override {
    mark("predict_batch");
    std::this_thread::sleep_for(batch_pause);
    return loss_of(batch);
  }
  void on_save_checkpoint(StateDict&) override { mark("save"); }
  Optimizers configure_optimizers() override {
    optim::AdamW adam(parameters(), {.lr = 0.02});
    if (scheduler == "plateau")
      return {adam,
              {.scheduler = optim::ReduceLROnPlateau(adam, {.factor = 0.5, .patience = 0}), .monitor = "val_loss"}};
    if (scheduler == "plateau_step")
      return {adam,
              {.scheduler = optim::ReduceLROnPlateau(adam, {.factor = 0.8, .patience = 1}),
               .interval = "step",
               .monitor = "train_loss"}};
    return {adam, {.scheduler = optim::StepLR(adam, {.step_size = 3, .gamma = 0.8}), .interval = "step"}};
  }

  torch::nn::Linear a;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear b;
  std::string scheduler;
};

void own_handler(int) {
  const char line[] = "own handler\n";
  const auto written = ::write(1, line, sizeof(line) - 1);
  (void)written;
}

bool has_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == handler;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main(argc, argv, [](Args& args) {
    const std::filesystem::path out = args.get("out", ".");
    const auto job = args.get("job", "fit");
    const auto ckpt_path = args.get("ckpt_path", "none");
    const auto scheduler = args.get("scheduler", "step");
    const auto at = args.get("at", "none");
    const auto rank = args.get("rank", 0);
    const bool handler = args.has("handler");
    fault.to_parent = args.get("to", "self") == "parent";
    const auto devices = args.get("devices", 1);
    const auto strategy = args.get("strategy", "auto");
    const auto max_steps = args.get("max_steps", -1);
    batch_pause = std::chrono::milliseconds(args.get("pause", 0));
    args.check_all_used();
    at::set_num_threads(1);
    torch::manual_seed(3);
    if (handler) std::signal(SIGTERM, own_handler);

    const auto checkpoints = out / "checkpoints";
    Trainer trainer({.accelerator = "cpu",
                     .strategy = strategy,
                     .devices = devices,
                     .logger = std::make_shared<CsvLogger>(out),
                     .callbacks = {ModelCheckpoint({.dirpath = checkpoints,
                                                    .filename = "step-{epoch}-{step}",
                                                    .save_last = true,
                                                    .every_n_train_steps = 3}),
                                   ModelCheckpoint({.dirpath = checkpoints,
                                                    .filename = "val-{epoch}-{step}",
                                                    .monitor = "val_loss",
                                                    .save_top_k = 2,
                                                    .every_n_epochs = 1,
                                                    .save_on_train_epoch_end = false}),
                                   ModelCheckpoint({.dirpath = checkpoints,
                                                    .filename = "end-{epoch}-{step}",
                                                    .every_n_epochs = 1,
                                                    .save_on_train_epoch_end = true})},
                     .max_epochs = 3,
                     .max_steps = max_steps,
                     // Three: some validations come in the middle of a window of accumulation.
                     .val_check_interval = 3,
                     .log_every_n_steps = 1,
                     .enable_progress_bar = false,
                     .enable_model_summary = false,
                     .accumulate_grad_batches = 2,
                     .gradient_clip_val = 1.0,
                     .default_root_dir = out});
    trainer.launch(args);
    if (at != "none" && trainer.fabric().global_rank() == rank) fault.read(at);
    Module module(scheduler);
    // 11 batches: the last window of an epoch is short.
    auto train = make_loader(NoisyPoints(44 * devices), {.batch_size = 4, .shuffle = true, .seed = 9});
    // Not the same number of batches on each rank.
    auto val = make_loader(NoisyPoints(9 * devices - (devices > 1 ? 1 : 0)), {.batch_size = 4});
    if (job == "fit") {
      trainer.fit(module, train, val, {.ckpt_path = ckpt_path == "none" ? "" : ckpt_path});
      trainer.save_checkpoint(out / "final.ckpt");
    } else if (job == "validate") {
      trainer.validate(module, val);
    } else if (job == "test") {
      trainer.test(module, val);
    } else {
      trainer.predict(module, val);
    }
    LEVIN_CHECK(has_handler(SIGTERM, handler ? own_handler : SIG_DFL) && has_handler(SIGINT, SIG_DFL) &&
                    has_handler(SIGUSR1, SIG_DFL),
                "[probe] a handler was not put back");
    if (!trainer.is_global_zero()) return;
    std::printf("log_dir %s\nevents", trainer.log_dir().c_str());
    for (const auto& [event, count] : fault.seen) std::printf(" %s=%ld", event.c_str(), static_cast<long>(count));
    std::printf("\n");
  });
}
