// A trainer of your own, written from Fabric: epochs, validation, accumulation, clipping, logs, checkpoints and resume
// on any number of ranks. Take it as a start where the Trainer does not fit.
//   trainer_from_fabric [--devices 2] [--epochs 3] [--resume]
#include "levin/data/fashion_mnist.h"
#include "levin/levin.h"

namespace {

struct MyTrainer {
  levin::Fabric& fabric;
  int64_t max_epochs = 3;
  int64_t accumulate = 1;
  double max_norm = 1.0;
  std::string folder = "runs/my_trainer";
  int64_t epoch = 0;
  int64_t step = 0;

  template <class Net, class TrainLoader, class ValLoader>
  void fit(Net& net, levin::Optimizer& optimizer, TrainLoader& train_loader, ValLoader& val_loader, bool resume) {
    levin::State state{
        {"model", net}, {"optimizer", optimizer}, {"loader", train_loader}, {"epoch", epoch}, {"step", step}};
    if (resume) fabric.load(folder, state);
    for (; epoch < max_epochs; ++epoch) {
      train(net, optimizer, train_loader);
      const double accuracy = validate(net, val_loader);
      fabric.log("val_acc", accuracy, step);
      fabric.print("epoch ", epoch, ": validation accuracy ", accuracy);
      ++epoch;  // a resumed run starts with the next one
      fabric.save(folder, state);
      --epoch;
    }
  }

  template <class Net, class Loader>
  void train(Net& net, levin::Optimizer& optimizer, Loader& loader) {
    net->train();
    std::optional<levin::ProgressBar> bar;
    if (fabric.is_global_zero()) bar.emplace(levin::detail::concat("Epoch ", epoch), loader.size());
    for (auto [i, batch] : levin::enumerate(loader)) {
      const bool steps = (i + 1) % accumulate == 0 || i + 1 == loader.size();
      {
        const auto no_sync = fabric.no_backward_sync(net, !steps);
        const auto loss = levin::cross_entropy(net(pixels(batch)), batch["label"]) / accumulate;
        fabric.backward(loss);
        if (steps && ++step % 50 == 0) fabric.log("train_loss", loss.detach(), step);
      }
      if (steps) {
        fabric.clip_gradients(net, optimizer, {.max_norm = max_norm});
        optimizer.step();
        optimizer.zero_grad();
      }
      if (bar) bar->advance();
    }
  }

  template <class Net, class Loader>
  double validate(Net& net, Loader& loader) {
    net->eval();
    const torch::NoGradGuard no_grad;
    auto counts = torch::zeros({2}, fabric.device());  // right, all
    for (auto& batch : loader) {
      const auto right = net(pixels(batch)).argmax(1).eq(batch["label"]);
      counts += torch::stack({right.sum(), torch::tensor(right.numel(), fabric.device())}).to(torch::kFloat);
    }
    counts = fabric.all_reduce(counts, "sum");
    return (counts[0] / counts[1]).item<double>();
  }

  static torch::Tensor pixels(const levin::Batch& batch) {
    return batch["image"].to(torch::kFloat).div(255).flatten(1);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Fabric fabric({.accelerator = "cpu",
                          .devices = args.get("devices", "1"),
                          .loggers = {std::make_shared<levin::CsvLogger>("runs/my_trainer_logs")}});
    MyTrainer trainer{.fabric = fabric, .max_epochs = args.get("epochs", 3), .accumulate = args.get("accumulate", 1)};
    const bool resume = args.has("resume");
    args.check_all_used();
    fabric.launch(args);
    levin::seed_everything(1, {.verbose = false});
    const auto data = levin::load_fashion_mnist_or_drawn();
    auto model = torch::nn::Sequential(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
    auto [net, optimizer] = fabric.setup(model, levin::optim::Adam(model->parameters(), {.lr = 1e-3}));
    auto [train_loader, val_loader] =
        fabric.setup_dataloaders(levin::make_loader(data.train, {.batch_size = 128, .shuffle = true}),
                                 levin::make_loader(data.test, {.batch_size = 500}));
    trainer.fit(net, optimizer, train_loader, val_loader, resume);
  });
}
