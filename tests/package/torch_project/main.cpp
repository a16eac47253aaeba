#include <cstdio>

#include <levin/levin.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  NetImpl() : fc(register_module("fc", torch::nn::Linear(4, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) { return fc(x); }
  torch::nn::Linear fc;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Fabric fabric({.accelerator = "cpu", .devices = args.get("devices", "auto")});
    args.check_all_used();
    fabric.launch(args);
    Net model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, optimizer] = fabric.setup(model, sgd);
    fabric.backward(net(torch::ones({2, 4})).pow(2).mean());
    optimizer.step();
    fabric.print("trained on ", fabric.world_size());
  });
}
