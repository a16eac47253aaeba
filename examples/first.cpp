// The first program of the README.
#include <levin/levin.h>

struct NetImpl : torch::nn::Module {
  NetImpl()
      : layers(register_module(
            "layers", torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
LEVIN_MODULE(Net);  // in place of TORCH_MODULE(Net)

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {  // any error: one line and exit status 1
    levin::Fabric fabric({.devices = args.get("devices", "auto"), .precision = args.get("precision", "32-true")});
    args.check_all_used();
    fabric.launch(args);  // starts the other ranks and joins them
    levin::Fabric::seed_everything(1, {.verbose = false});
    auto model = fabric.init_module([] { return Net(); });
    auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 1e-2}));
    const auto x = torch::rand({4096, 2}) * 2 - 1;
    auto loader = fabric.setup_dataloaders(levin::make_loader(levin::TensorDataset({{"x", x}, {"y", x.prod(1, true)}}),
                                                              {.batch_size = 64, .shuffle = true}));
    for (int epoch = 0; epoch < 5; ++epoch) {
      torch::Tensor loss;
      for (auto& batch : loader) {
        loss = torch::mse_loss(net(batch["x"]), batch["y"]);
        fabric.backward(loss);
        opt.step();
        opt.zero_grad();
      }
      fabric.print("epoch ", epoch, " loss ", loss.item<float>());
    }
    fabric.save("first", {{"model", net}, {"optimizer", opt}});
  });
}
