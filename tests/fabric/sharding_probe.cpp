// A program that trains a small decoder under any strategy, and resumes from any checkpoint.
//   sharding_probe [--strategy S] [--devices N] [--precision P] [--from STEP] [--to STEP] [--load DIR] [--save DIR]
//                  [--save-at STEP] [--clip NORM] [--meta] [--optimizer AdamW|AdamW8bit|Adafactor] [--width N]
//                  [--type full] [--full] [--accelerator cuda] [--compile]
#include <iostream>

#include "levin/levin.h"

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", levin::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", levin::nn::Linear(width, hidden(width)))),
        down(register_module("down", levin::nn::Linear(hidden(width), width))) {}
  // Odd, or with multiples of 16, which float8 needs, one of them.
  static int64_t hidden(int64_t width) { return 3 * width + (width % 16 == 0 ? 0 : 1); }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  levin::nn::LayerNorm norm;
  levin::nn::Linear up, down;
};
LEVIN_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) : embedding(register_module("embedding", levin::nn::Embedding(31, width))) {
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
    head = register_module("head", levin::nn::Linear(torch::nn::LinearOptions(width, 31).bias(false)));
    levin::tie(*this, head->weight, embedding->weight);
    register_buffer("seen", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto h = embedding(tokens);
    for (auto& block : blocks) h = block(h);
    return head(h);
  }
  levin::nn::Embedding embedding;
  std::vector<Block> blocks;
  levin::nn::Linear head{nullptr};
};
LEVIN_MODULE(Net);

levin::StrategyChoice choose(const std::string& name, const std::string& type) {
  const auto blocks = levin::policy::by_class<Block>();
  if (name == "fsdp") return levin::FsdpOptions{.auto_wrap_policy = blocks, .state_dict_type = type};
  if (name == "fsdp_in_backward")
    return levin::FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true, .optimizer_in_backward = true};
  if (name == "fsdp_offload") return levin::FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true};
  if (name == "stage_1") return levin::ZeroOptions{.stage = 1, .auto_wrap_policy = blocks};
  if (name == "stage_2") return levin::ZeroOptions{.stage = 2, .auto_wrap_policy = blocks, .state_dict_type = type};
  if (name == "stage_3") return levin::ZeroOptions{.stage = 3, .auto_wrap_policy = blocks};
  return name;
}

levin::Optimizer choose_optimizer(const std::string& name, const std::vector<torch::Tensor>& params) {
  if (name == "AdamW8bit") return levin::optim::AdamW8bit(params, {.lr = 2e-3});
  if (name == "Adafactor") return levin::optim::Adafactor(params);
  return levin::optim::AdamW(params, {.lr = 1e-2});
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto from = args.get("from", 0), to = args.get("to", 8);
    const auto load = args.get("load", ""), save = args.get("save", ""),
               optimizer_name = args.get("optimizer", "AdamW");
    const auto save_at = args.get("save-at", to), width = args.get("width", 18);
    const auto clip = args.get("clip", 0.0);
    const bool meta = args.has("meta"), full = args.has("full");
    levin::Fabric fabric({.accelerator = args.get("accelerator", "cpu"),
                          .strategy = choose(args.get("strategy", "auto"), args.get("type", "sharded")),
                          .devices = args.get("devices", "auto"),
                          .precision = args.get("precision", "32-true"),
                          .compile = args.has("compile")});
    args.check_all_used();
    fabric.launch(args);
    at::set_num_threads(1);
    torch::manual_seed(5);
    auto model = fabric.init_module([&] { return Net(width); }, {.meta = meta});
    auto [net, optimizer] = fabric.setup(model, choose_optimizer(optimizer_name, model->parameters()));
    int64_t step = from;
    levin::State state{{"model", net}, {"optimizer", optimizer}, {"step", step}};
    if (!load.empty()) fabric.load(load, state);
    auto train = fabric.compile([&, &net = net, &optimizer = optimizer](const torch::Tensor& mine) {
      auto logits = net(mine.narrow(1, 0, 6));
      auto loss = levin::cross_entropy(logits.reshape({-1, 31}), mine.narrow(1, 1, 6).reshape({-1}));
      fabric.backward(loss);
      if (clip > 0) fabric.clip_gradients(optimizer, {.max_norm = clip});
      optimizer.step();
      optimizer.zero_grad();
      return loss.detach();
    });
    for (; step < to; ++step) {
      if (step == save_at && !save.empty()) fabric.save(save, state, {.full = full});
      auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + step));
      const auto tokens = torch::randint(0, 31, {12, 7}, generator, torch::kLong);
      const auto part = 12 / fabric.world_size();
      const auto loss = train(fabric.to_device(tokens.narrow(0, part * fabric.global_rank(), part).contiguous()));
      const auto mean = fabric.all_reduce(loss.clone());
      if (fabric.is_global_zero()) std::cout << fmt::format("step {} loss {:.9g}\n", step, mean.item<double>());
    }
    if (step == save_at && !save.empty()) fabric.save(save, state, {.full = full});
  });
}
