// Trains a small decoder on sentences of a grammar, then generates some. Seconds on one CPU.
//   train_gpt [--steps 150] [--devices 1] [--strategy auto] [--precision 32-true] [--accelerator cpu] [--lr 3e-3]
#include <algorithm>
#include <random>
#include <sstream>

#include "levin/levin.h"

namespace {

const std::vector<std::string> kWords{".",   "the",  "a",     "big",   "small", "cat",  "dog",
                                      "fox", "sees", "hears", "sings", "runs",  "fast", "often"};

int64_t word(std::string_view text) {
  return std::find(kWords.begin(), kWords.end(), text) - kWords.begin();
}

/// "the big cat sees a dog .", "a fox sings often .": that many tokens of such sentences in a row.
torch::Tensor sentences(int64_t count, std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<std::string_view> words) {
    return word(words.begin()[random() % words.size()]);
  };
  std::vector<int64_t> tokens;
  const auto noun = [&] {
    tokens.push_back(one_of({"the", "a"}));
    if (random() % 2) tokens.push_back(one_of({"big", "small"}));
    tokens.push_back(one_of({"cat", "dog", "fox"}));
  };
  while (static_cast<int64_t>(tokens.size()) < count) {
    noun();
    if (random() % 2) {
      tokens.push_back(one_of({"sees", "hears"}));
      noun();
    } else {
      tokens.push_back(one_of({"sings", "runs"}));
      tokens.push_back(one_of({"fast", "often"}));
    }
    tokens.push_back(word("."));
  }
  tokens.resize(static_cast<size_t>(count));
  return torch::tensor(tokens, torch::kLong);
}

void train(levin::Args& args) {
  levin::Fabric fabric({.accelerator = args.get("accelerator", "cpu"),
                        .strategy = args.get("strategy", "auto"),
                        .devices = args.get("devices", "1"),
                        .precision = args.get("precision", "32-true")});
  const auto steps = args.get("steps", 150);
  const auto lr = args.get("lr", 3e-3);
  args.check_all_used();
  fabric.launch(args);
  levin::Fabric::seed_everything(1, {.verbose = false});
  auto model = fabric.init_module([] {
    return levin::models::decoder({.vocab_size = static_cast<int64_t>(kWords.size()),
                                   .max_positions = 48,
                                   .num_layers = 2,
                                   .num_heads = 4,
                                   .hidden_dim = 64,
                                   .norm = "rms",
                                   .positions = "rotary"});
  });
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(levin::unique_parameters(*model), {.lr = lr}));

  std::mt19937 random(static_cast<unsigned>(fabric.global_rank()));
  net->train();
  for (int64_t step = 1; step <= steps; ++step) {
    const auto tokens = sentences(int64_t{16} * 32, random).view({16, 32}).to(fabric.device());
    const auto loss = net(tokens, levin::models::next_tokens(tokens));
    fabric.backward(loss);
    fabric.clip_gradients(net, optimizer, {.max_norm = 1.0});
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0) fabric.print("step ", step, " loss ", loss.item<double>());
  }

  net->eval();
  torch::NoGradGuard no_grad;
  auto text = torch::tensor({{word("."), word("the")}}).to(fabric.device());
  while (text.size(1) < 32) {
    const auto chances = net(text).select(1, -1).to(torch::kFloat).softmax(-1);
    text = torch::cat({text, fabric.broadcast(chances.multinomial(1))}, 1);  // the same word on every rank
  }
  std::ostringstream spoken;
  for (int64_t i = 1; i < text.size(1); ++i) spoken << kWords[static_cast<size_t>(text[0][i].item<int64_t>())] << ' ';
  fabric.print(spoken.str());
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
