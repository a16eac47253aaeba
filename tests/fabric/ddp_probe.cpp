// A program that trains with Fabric and says what came out: started in every way the tests know.
//   ddp_probe [--devices N] [--accelerator cpu|cuda] [--precision P] [--fail rank] [--how
//   exit|throw|kill|hang|mismatch|unused|sleep]
#include <csignal>
#include <iostream>
#include <thread>

#include "levin/levin.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl()
      : a(register_module("a", torch::nn::Linear(8, 16))),
        b(register_module("b", torch::nn::Linear(16, 16))),
        c(register_module("c", torch::nn::Linear(16, 3))) {}
  torch::Tensor forward(const torch::Tensor& x, bool skip) {
    auto h = torch::relu(a(x));
    if (!skip) h = torch::relu(b(h));
    return c(h);
  }
  torch::nn::Linear a, b, c;
};
LEVIN_MODULE(Net);

void fail_as_asked(levin::Fabric& fabric, const std::string& how) {
  if (how == "exit") std::exit(3);
  if (how == "throw") throw levin::Error("[probe] asked to fail");
  if (how == "kill") std::raise(SIGKILL);
  if (how == "sleep") {
    std::cout << fmt::format("rank {} sleeps\n", fabric.global_rank()) << std::flush;
    std::this_thread::sleep_for(std::chrono::minutes(10));
  }
  if (how == "mismatch") fabric.all_reduce(torch::ones({fabric.global_rank() + 4}));
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto fail_rank = args.get("fail", -1);
    const auto how = args.get("how", "exit");
    const auto accumulate = args.get("accumulate", 1);
    levin::DdpOptions ddp;
    if (args.has("gloo")) ddp.process_group_backend = "gloo";
    if (args.get("timeout", 0) > 0) ddp.timeout = std::chrono::seconds(args.get("timeout", 0));
    levin::Fabric fabric({.accelerator = args.get("accelerator", "cpu"),
                          .strategy = ddp,
                          .devices = args.get("devices", "auto"),
                          .num_nodes = args.get("num-nodes", 1),
                          .precision = args.get("precision", "32-true")});
    args.check_all_used();
    fabric.launch(args);
    at::set_num_threads(1);
    torch::manual_seed(5);
    auto model = Net();
    auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 1e-2}));
    for (int step = 0; step < 20; ++step) {
      if (step == 10 && fail_rank == fabric.global_rank()) fail_as_asked(fabric, how);
      if (step == 10 && how == "mismatch" && fail_rank >= 0) fabric.all_reduce(torch::ones({4}));
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        // Every rank draws the whole batch and takes its part.
        const auto x = torch::randn({24, 8}), y = torch::randint(0, 3, {24});
        const auto part = 24 / fabric.world_size();
        const auto [mine_x, mine_y] = fabric.to_device(
            std::pair{x.narrow(0, part * fabric.global_rank(), part), y.narrow(0, part * fabric.global_rank(), part)});
        const auto no_sync = fabric.no_backward_sync(net, micro + 1 < accumulate);
        const bool skip = how == "unused" && step >= 10 && fail_rank == fabric.global_rank();
        fabric.backward(levin::cross_entropy(net(mine_x, skip), mine_y) / accumulate);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    double sum = 0;
    for (const auto& p : model->parameters()) sum += p.detach().to(torch::kDouble).abs().sum().item<double>();
    fabric.barrier("the end");
    std::cout << fmt::format("rank {} of {} node {} sum {:.6f}\n", fabric.global_rank(), fabric.world_size(),
                             fabric.node_rank(), sum)
              << std::flush;
  });
}
