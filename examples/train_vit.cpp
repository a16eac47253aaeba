// A small vision transformer on Fashion-MNIST with Fabric, on two CPU processes by default (`make run`).
//   train_vit [--devices 2] [--accelerator cpu] [--strategy ddp] [--precision 32-true] [--epochs 4] [--batch-size 128]
//   [--lr 1e-3]
//             [--data FOLDER] [--output runs/vit] [--resume] [--seed 1]
#include <chrono>

#include <fmt/format.h>

#include "levin/data/fashion_mnist.h"
#include "levin/levin.h"

using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// uint8 [B, 1, 28, 28] to floats around 0.
torch::Tensor normalized(const torch::Tensor& image) {
  return image.to(torch::kFloat).div(255).sub(0.2860).div(0.3530);
}

void train(levin::Args& args) {
  levin::Fabric fabric({.accelerator = args.get("accelerator", "cpu"),
                        .strategy = args.get("strategy", "auto"),
                        .devices = args.get("devices", "2"),
                        .num_nodes = args.get("num-nodes", 1),
                        .precision = args.get("precision", "32-true")});
  const auto epochs = args.get("epochs", 4);
  const auto batch_size = args.get("batch-size", 128);
  const auto learning_rate = args.get("lr", 1.5e-3);
  const auto output = args.get("output", "runs/vit");
  const auto data_folder = args.get("data", "");
  const auto seed = args.get("seed", 1);
  const auto limit = args.get("limit-batches", 0);
  const bool resume = args.has("resume");
  args.check_all_used();
  LEVIN_CHECK(epochs >= 1, "[train_vit] --epochs ", epochs, " must be 1 or more");
  LEVIN_CHECK(batch_size >= fabric.world_size(), "[train_vit] --batch-size ", batch_size,
              " must be at least the number of processes");
  fabric.launch(args);
  levin::Fabric::seed_everything(seed, {.verbose = false});

  const auto data = levin::load_fashion_mnist_or_drawn(data_folder);
  const auto per_rank = batch_size / fabric.world_size();
  auto train_loader = fabric.setup_dataloaders(levin::make_loader(
      data.train, {.batch_size = per_rank, .shuffle = true, .drop_last = true, .seed = static_cast<uint64_t>(seed)}));
  auto val_loader = fabric.setup_dataloaders(levin::make_loader(data.test, {.batch_size = 500}));

  auto model = fabric.init_module([] {
    return levin::models::vit({.image_size = 28,
                               .patch_size = 7,
                               .num_layers = 4,
                               .num_heads = 4,
                               .hidden_dim = 64,
                               .mlp_dim = 128,
                               .num_classes = 10,
                               .in_channels = 1});
  });
  auto [net, optimizer] =
      fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = learning_rate, .weight_decay = 0.05}));
  const auto steps_per_epoch =
      limit > 0 ? std::min<int64_t>(limit, train_loader.size()) : static_cast<int64_t>(train_loader.size());
  levin::optim::OneCycleLR schedule(
      optimizer, {.max_lr = learning_rate, .total_steps = epochs * steps_per_epoch, .pct_start = 0.15});

  int64_t epoch = 0;
  double accuracy = 0;
  levin::State state{{"model", net},           {"optimizer", optimizer}, {"schedule", schedule},
                     {"loader", train_loader}, {"epoch", epoch},         {"accuracy", accuracy}};
  if (resume) fabric.load(output, state);

  fabric.print("A vision transformer with ", levin::format_count(levin::summarize(*model).total), " parameters on ",
               data.name, ": ", data.train.size(), " images, ", fabric.plan().to_string());
  const auto start = Clock::now();
  for (; epoch < epochs; ++epoch) {
    net->train();
    std::optional<levin::ProgressBar> bar;
    if (fabric.is_global_zero())
      bar.emplace(
          levin::detail::concat("Epoch ", epoch + 1, "/", epochs), steps_per_epoch,
          levin::ProgressOptions{.unit = "img", .per_step = static_cast<double>(per_rank * fabric.world_size())});
    int64_t step = 0;
    for (auto& batch : train_loader) {
      auto loss = levin::cross_entropy(net(normalized(batch["image"])), batch["label"]);
      fabric.backward(loss);
      fabric.clip_gradients(net, optimizer, {.max_norm = 1.0});
      optimizer.step();
      optimizer.zero_grad();
      schedule.step();
      if (bar) {
        if (step % 10 == 0) bar->set("loss", loss.item<double>());
        bar->advance();
      }
      if (++step == steps_per_epoch) break;
    }
    bar.reset();

    net->eval();
    torch::NoGradGuard no_grad;
    auto counts = torch::zeros({2}, torch::kDouble).to(fabric.device());  // right, all
    for (auto& batch : val_loader) {
      const auto right = net(normalized(batch["image"])).argmax(1).eq(batch["label"]).sum();
      counts += torch::stack({right, torch::full_like(right, batch["label"].size(0))});
    }
    fabric.all_reduce(counts, "sum");
    accuracy = (counts[0] / counts[1]).item<double>();
    fabric.print("  validation accuracy ", fmt::format("{:.2f} %", 100 * accuracy));
  }
  const double seconds = seconds_since(start);
  fabric.save(output, state);

  const auto peak = fabric.accelerator().memory(fabric.device()).peak_allocated;
  fabric.print("\nTrained ", epochs, " epochs in ", levin::format_duration(seconds), "  (",
               levin::format_count(epochs * steps_per_epoch * per_rank * fabric.world_size() / seconds),
               " images/s, peak memory ", levin::format_bytes(static_cast<double>(peak)), " per process)");
  fabric.print("Validation accuracy ", fmt::format("{:.2f} %", 100 * accuracy), ". Checkpoint: ", output);
  fabric.print(
      "\nTo try next:\n"
      "  make run ARGS=\"--precision bf16-mixed --epochs 2\"     another precision, by a flag\n"
      "  make run ARGS=\"--devices 1\"                           one process\n"
      "  make install PREFIX=$HOME/levin && levin new app      a program of your own");
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
