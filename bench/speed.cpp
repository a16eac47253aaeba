// Training steps of well-known models through Fabric, eager and compiled: the figures of docs/performance.md.
//   speed [--case NAME,...] [--mode eager,compiled] [--rounds 3] [--seconds 1.5] [--list] [--turns]
//   speed --kernels [--case NAME,...] [--mode ...] [--json FILE] [--timeline FILE] [--tflops 750] [--terabytes 4.27]
// A case prints one line of JSON. A round is as many steps as fill its part of --seconds, 10 to 20 (on the CPU, which
// uses two threads, 3 to 20); ms is the median of the rounds.
// --turns: every round waits for a line on stdin, so that other programs can have the device in between (bench/run);
// the end of stdin ends the rounds. A case in fp8-mixed is followed by its ratio to the same case in bf16-mixed, if
// that was measured before it: --case vit_l_16_bs64_mixed,vit_l_16_bs64_fp8. --kernels: the device time of a step by
// class of kernels, beside its limit; every run of a kernel goes to the file of --timeline.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/speed/encoder.h"
#include "bench/speed/kernels.h"
#include "bench/speed/work.h"
#include "levin/levin.h"
#include "levin/models/text_encoder_sizes.h"

namespace {

using at::Tensor;
using levin::Batch;
using levin::Fabric;
using levin::bench::Work;
using Clock = std::chrono::steady_clock;
/// One training step; gives its loss.
using Step = std::function<Tensor()>;

constexpr int kWarmUp = 6;

// ---- compiled mode, where this Levin has it

template <class F, class Body>
concept CompilesSteps = requires(F& fabric, Body body) {
  fabric.compile(body);
};

template <class Options>
constexpr bool kHasCompile = requires(Options options) {
  options.compile = true;
};

template <class Options>
Options fabric_options(Options options, bool compiled) {
  if constexpr (kHasCompile<Options>) options.compile = compiled;
  return options;
}

template <class F, class Body>
Step compiled_step(F& fabric, Body body, Batch batch) {
  if constexpr (CompilesSteps<F, Body>) {
    auto step = fabric.compile(std::move(body));
    return [step = std::make_shared<decltype(step)>(std::move(step)), batch = std::move(batch)]() mutable -> Tensor {
      return (*step)(batch);
    };
  } else {
    throw levin::Error("[speed] this Levin has no compiled mode");
  }
}

// ---- cases

/// What is needed to run a case: its step, and what the model of it has.
struct Trained {
  Step step;
  int64_t parameters = 0;
};

struct Case {
  std::string name;
  /// For tables.
  std::string title;
  std::string precision = "bf16-mixed";
  /// Images or tokens of a step.
  int64_t items = 0;
  const char* unit = "images";
  /// Tensors of state that the optimizer has for each parameter.
  int moments = 2;
  std::function<Trained(Fabric&, bool compiled)> make;
  std::function<Work(levin::bench::StepBytes, levin::bench::Roof)> work;
  /// The peak of an eager step on CUDA as the memory estimate predicts it.
  std::function<double()> predicted_gb;
  bool cuda = true;
  /// It runs only when it is named.
  bool named_only = false;
  /// The case whose time is divided by that of this one.
  std::string compared_with = {};
};

/// The whole of a user's loop: forward, backward, step, zero_grad.
template <class Model, class LossOf>
Trained trained(Fabric& fabric, const Model& model, levin::Optimizer optimizer, Batch batch, LossOf loss_of,
                bool compiled) {
  auto set_up = fabric.setup(model, std::move(optimizer));
  auto& net = std::get<0>(set_up);
  net->train();
  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  auto body = [&fabric, net, opt = std::get<1>(set_up), loss_of](Batch& b) mutable {
    Tensor loss = loss_of(net, b);
    fabric.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss;
  };
  if (compiled) return {compiled_step(fabric, std::move(body), std::move(batch)), parameters};
  return {[body = std::move(body), batch = std::move(batch)]() mutable { return body(batch); }, parameters};
}

/// What a step of that model takes at most, predicted without a device. `batch` has no memory.
template <class Make, class LossOf>
double predicted_gb(Make make, LossOf loss_of, const Batch& batch, const std::string& precision,
                    const std::string& optimizer) {
  const auto estimate = levin::estimate_memory(
      make,
      [loss_of](auto& model, const Batch& given) {
        Batch mine = given;
        return loss_of(model, mine);
      },
      [](const Tensor& loss, const Batch&) { return loss; }, batch,
      {.strategy = "single_device", .precision = precision, .optimizer = optimizer});
  return static_cast<double>(estimate.device_peak) / 1e9;
}

const auto kImageLoss = [](const auto& net, Batch& batch) {
  return levin::cross_entropy(net(batch["image"]), batch["label"]);
};

const auto kTokenLoss = [](const auto& net, Batch& batch) { return net(batch["tokens"], batch["next"]); };
const auto kTextLoss = [](const auto& net, Batch& batch) {
  const auto logits = net(batch["tokens"], batch.contains("mask") ? batch["mask"] : Tensor());
  return levin::cross_entropy(logits.to(at::kFloat), batch["label"]);
};

Tensor without_memory(at::IntArrayRef sizes, at::ScalarType dtype = at::kLong) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
}
Batch images_without_memory(int64_t count, int64_t side, bool channels_last = false) {
  auto x = without_memory({count, 3, side, side}, at::kFloat);
  if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  return {{"image", x}, {"label", without_memory({count})}};
}

Batch images(const Fabric& fabric, int64_t count, int64_t side, bool channels_last = false) {
  auto x = torch::randn({count, 3, side, side}, fabric.device());
  if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  return {{"image", x}, {"label", torch::randint(0, 10, {count}, x.options().dtype(at::kLong))}};
}

Tensor random_tokens(const Fabric& fabric, int64_t rows, int64_t length, int64_t vocabulary) {
  return torch::randint(0, vocabulary, {rows, length}, at::TensorOptions(fabric.device()).dtype(at::kLong));
}

Case vit_case(std::string name, const std::string& label, levin::models::ViTOptions sizes, int64_t batch,
              std::string precision, bool adamw, bool cuda = true) {
  sizes.num_classes = 10;
  return {.name = std::move(name),
          .title = fmt::format("{}, batch {}, {}{}", label, batch, precision, cuda ? "" : ", CPU"),
          .precision = precision,
          .items = batch,
          .make =
              [=](Fabric& fabric, bool compiled) {
                auto model = fabric.init_module([&] { return levin::models::vit(sizes); });
                const auto parameters = model->parameters();
                const auto optimizer = adamw ? levin::Optimizer(levin::optim::AdamW(parameters, {.lr = 1e-4}))
                                             : levin::Optimizer(levin::optim::Adam(parameters, {.lr = 5e-5}));
                return trained(fabric, model, optimizer, images(fabric, batch, sizes.image_size), kImageLoss, compiled);
              },
          .work = [=](auto bytes, auto roof) { return levin::bench::vit_work(sizes, batch, bytes, roof); },
          .predicted_gb =
              [=] {
                return predicted_gb([=] { return levin::models::vit(sizes); }, kImageLoss,
                                    images_without_memory(batch, sizes.image_size), precision,
                                    adamw ? "adamw" : "adam");
              },
          .cuda = cuda};
}

Case resnet_case(std::string name, const std::string& label, levin::models::ResNetOptions sizes, int64_t batch,
                 int64_t side, std::string precision, bool cuda = true) {
  sizes.num_classes = 10;
  return {.name = std::move(name),
          .title = fmt::format("{}, {} px, batch {}, {}{}", label, side, batch, precision, cuda ? "" : ", CPU"),
          .precision = precision,
          .items = batch,
          .moments = 1,
          .make =
              [=](Fabric& fabric, bool compiled) {
                auto model = fabric.init_module([&] { return levin::models::resnet(sizes); });
                // On the CPU the model decides by the size of the batch.
                if (cuda) levin::models::to_channels_last(*model);
                return trained(fabric, model, levin::optim::SGD(model->parameters(), {.lr = 0.01, .momentum = 0.9}),
                               images(fabric, batch, side, /*channels_last=*/cuda), kImageLoss, compiled);
              },
          .work = [=](auto bytes, auto roof) { return levin::bench::resnet_work(sizes, batch, side, bytes, roof); },
          .predicted_gb =
              [=] {
                const auto make = [=] {
                  auto model = levin::models::resnet(sizes);
                  if (cuda) levin::models::to_channels_last(*model);
                  return model;
                };
                return predicted_gb(make, kImageLoss, images_without_memory(batch, side, /*channels_last=*/cuda),
                                    precision, "sgd_momentum");
              },
          .cuda = cuda};
}

Case gpt2_case(std::string name, const std::string& size, const std::string& label, int64_t sequences, int64_t length,
               std::string precision = "bf16-mixed") {
  const auto sizes = levin::models::decoder_options(size);
  return {
      .name = std::move(name),
      .title = fmt::format("{}, {} x {} tokens, {}", label, sequences, length, precision),
      .precision = precision,
      .items = sequences * length,
      .unit = "tokens",
      .make =
          [=](Fabric& fabric, bool compiled) {
            auto model = fabric.init_module([&] { return levin::models::decoder(sizes); });
            const auto tokens = random_tokens(fabric, sequences, length, sizes.vocab_size);
            return trained(fabric, model, levin::optim::AdamW(model->parameters(), {.lr = 1e-4}),
                           {{"tokens", tokens}, {"next", levin::models::next_tokens(tokens)}}, kTokenLoss, compiled);
          },
      .work = [=](auto bytes, auto roof) { return levin::bench::decoder_work(sizes, sequences, length, bytes, roof); },
      .predicted_gb =
          [=] {
            const auto tokens = without_memory({sequences, length});
            return predicted_gb([=] { return levin::models::decoder(sizes); }, kTokenLoss,
                                {{"tokens", tokens}, {"next", without_memory({sequences, length})}}, precision,
                                "adamw");
          }};
}

/// Every row of tokens is 16 shorter than the one before it.
Tensor padded_mask(int64_t sequences, int64_t length, at::TensorOptions options) {
  auto mask = torch::ones({sequences, length}, options);
  for (int64_t i = 0; i < sequences; ++i) mask[i].slice(0, length - 16 * i).zero_();
  return mask;
}

/// A classifier of texts as the recipe text_classification trains it.
Case classifier_case(std::string name, const char* size, const char* title, int64_t sequences, int64_t length,
                     bool padded = false) {
  const auto sizes = levin::models::text_encoder_options(size);
  const auto make = [=](Fabric& fabric, bool compiled) {
    auto model = fabric.init_module([&] { return levin::models::TextEncoder(sizes); });
    const auto tokens = random_tokens(fabric, sequences, length, sizes.body.vocab_size);
    Batch batch{{"tokens", tokens}, {"label", torch::randint(0, sizes.num_labels, {sequences}, tokens.options())}};
    if (padded) batch.set("mask", padded_mask(sequences, length, tokens.options()));
    return trained(fabric, model, levin::optim::AdamW(model->parameters(), {.lr = 1e-4}), batch, kTextLoss, compiled);
  };
  const auto predicted = [=] {
    Batch batch{{"tokens", without_memory({sequences, length})}, {"label", without_memory({sequences})}};
    if (padded) batch.set("mask", without_memory({sequences, length}));
    return predicted_gb([=] { return levin::models::TextEncoder(sizes); }, kTextLoss, batch, "bf16-true", "adamw");
  };
  return {.name = std::move(name),
          .title = fmt::format("{}, {} x {} tokens, {}bf16-true", title, sequences, length, padded ? "padded, " : ""),
          .precision = "bf16-true",
          .items = sequences * length,
          .unit = "tokens",
          .make = make,
          .work = [=](auto bytes,
                      auto roof) { return levin::bench::text_encoder_work(sizes, sequences, length, bytes, roof); },
          .predicted_gb = predicted};
}

/// A case that runs only when it is named, beside the one that does the same in another precision.
Case named_only(Case c, std::string compared_with = {}) {
  c.named_only = true, c.compared_with = std::move(compared_with);
  return c;
}

/// bench/peers/speed.py has the same cases under the same names, and of those that run only when they are named
/// bigbird_4096, which torch.compile takes long for.
std::vector<Case> all_cases() {
  const levin::models::ViTOptions large{
      .patch_size = 16, .num_layers = 24, .num_heads = 16, .hidden_dim = 1024, .mlp_dim = 4096};
  const levin::models::ViTOptions base{};
  const levin::models::ViTOptions tiny{
      .image_size = 32, .patch_size = 4, .num_layers = 12, .num_heads = 3, .hidden_dim = 192, .mlp_dim = 768};
  const levin::models::ResNetOptions resnet50{};
  const levin::models::ResNetOptions resnet18{.layers = {2, 2, 2, 2}, .bottleneck = false};
  return {vit_case("vit_l_16_bs64_mixed", "ViT-L/16", large, 64, "bf16-mixed", false),
          vit_case("vit_l_16_bs64", "ViT-L/16", large, 64, "bf16-true", false),
          vit_case("vit_l_16_bs16", "ViT-L/16", large, 16, "bf16-true", false),
          vit_case("vit_l_16_bs4", "ViT-L/16", large, 4, "bf16-true", false),
          vit_case("vit_b_16_bs32", "ViT-B/16", base, 32, "bf16-mixed", true),
          resnet_case("resnet50_32px_bs128", "ResNet-50", resnet50, 128, 32, "bf16-mixed"),
          resnet_case("resnet50_224px_bs64", "ResNet-50", resnet50, 64, 224, "bf16-mixed"),
          gpt2_case("gpt2_124m", "gpt2", "GPT-2 124M", 16, 1024),
          classifier_case("distilbert", "distilbert", "DistilBERT", 12, 512),
          classifier_case("distilbert_classify", "distilbert", "DistilBERT", 12, 512, /*padded=*/true),
          vit_case("vit_tiny_cpu", "ViT-tiny", tiny, 8, "32-true", true, /*cuda=*/false),
          resnet_case("resnet18_32px_cpu", "ResNet-18", resnet18, 16, 32, "32-true", /*cuda=*/false),
          resnet_case("resnet18_224px_cpu", "ResNet-18", resnet18, 8, 224, "32-true", /*cuda=*/false),
          named_only(resnet_case("resnet18_64px_cpu", "ResNet-18", resnet18, 8, 64, "32-true", /*cuda=*/false)),
          named_only(resnet_case("resnet18_224px_bs4_cpu", "ResNet-18", resnet18, 4, 224, "32-true", /*cuda=*/false)),
          named_only(vit_case("vit_l_16_bs64_fp8", "ViT-L/16", large, 64, "fp8-mixed", false), "vit_l_16_bs64_mixed"),
          named_only(gpt2_case("gpt2_774m", "gpt2_large", "GPT-2 774M", 8, 1024)),
          named_only(gpt2_case("gpt2_774m_fp8", "gpt2_large", "GPT-2 774M", 8, 1024, "fp8-mixed"), "gpt2_774m"),
          named_only(classifier_case("bigbird_4096", "big_bird", "BigBird", 4, 4096))};
}

// ---- measurement

struct Settings {
  int64_t rounds = 3;
  double seconds = 1.5;
  bool turns = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

double rounded(double value, double unit) {
  return std::round(value / unit) * unit;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// A case that was set up and has made its first steps.
class Running {
 public:
  Running(const Case& c, bool compiled)
      : case_(c),
        fabric_(fabric_options(
            levin::FabricOptions{.accelerator = c.cuda ? "cuda" : "cpu", .devices = 1, .precision = c.precision},
            compiled)),
        trained_((fabric_.launch(), torch::manual_seed(0), c.make(fabric_, compiled))) {
    synchronize();
    fabric_.accelerator().reset_peak_memory(fabric_.device());
    const auto start = Clock::now();
    loss_ = trained_.step();
    synchronize();
    first_s_ = seconds_since(start);
    // The last of them say how many steps fill a round.
    for (int i = 0; i < kWarmUp - 3; ++i) loss_ = trained_.step();
    step_s_ = timed(3);
    // A CUDA graph allocates what it needs while it is captured and nothing when it runs, so there the peak is that of
    // all steps.
    if (!compiled) fabric_.accelerator().reset_peak_memory(fabric_.device());
  }
  ~Running() {
    trained_ = {};
    loss_.reset();
    fabric_.accelerator().empty_cache(fabric_.device());
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void synchronize() { fabric_.accelerator().synchronize(fabric_.device()); }
  Trained& trained() { return trained_; }
  double step_s() const { return step_s_; }

  /// Seconds of a step, over that many.
  double timed(int64_t steps) {
    synchronize();
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) loss_ = trained_.step();
    synchronize();
    return seconds_since(start) / static_cast<double>(steps);
  }

  nlohmann::json measure(const Settings& settings, const std::string& mode) {
    const auto fitting = settings.seconds / static_cast<double>(settings.rounds) / step_s_;
    const auto steps = std::clamp<int64_t>(static_cast<int64_t>(fitting), case_.cuda ? 10 : 3, 20);
    std::vector<double> rounds;
    if (settings.turns) print({{"ready", case_.name}});
    std::string line;
    while (settings.turns ? static_cast<bool>(std::getline(std::cin, line))
                          : static_cast<int64_t>(rounds.size()) < settings.rounds) {
      // The device may have idled, or worked for another program.
      if (settings.turns) timed(2);
      rounds.push_back(timed(steps) * 1e3);
      if (settings.turns) print({{"round", rounded(rounds.back(), 1e-4)}});
    }
    if (rounds.empty()) throw levin::Error("[speed] no round was asked for");
    const auto [least, most] = std::minmax_element(rounds.begin(), rounds.end());
    const auto ms = median(rounds);
    const auto memory = fabric_.accelerator().memory(fabric_.device());
    nlohmann::json figure{
        {"name", case_.name},
        {"mode", mode},
        {"precision", case_.precision},
        {"first_s", rounded(first_s_, 1e-4)},
        {"ms", rounded(ms, 1e-4)},
        {"spread", {rounded(*least, 1e-4), rounded(*most, 1e-4)}},
        {"peak_gb", rounded(static_cast<double>(memory.peak_allocated) / 1e9, 1e-3)},
        {"reserved_gb", rounded(static_cast<double>(memory.peak_reserved) / 1e9, 1e-3)},
        {"loss", loss_.item<double>()},
        {"steps", steps * static_cast<int64_t>(rounds.size())},
        {std::string(case_.unit) + "_per_s", rounded(static_cast<double>(case_.items) / ms * 1e3, 0.1)}};
    if (case_.cuda && !settings.turns) figure["predicted_gb"] = rounded(case_.predicted_gb(), 1e-3);
    return figure;
  }

 private:
  const Case& case_;
  Fabric fabric_;
  Trained trained_;
  Tensor loss_;
  double first_s_ = 0, step_s_ = 0;
};

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < list.size();) {
    const auto comma = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return words;
}

std::vector<Case> chosen_cases(const std::string& list, bool has_cuda) {
  auto all = all_cases();
  std::vector<std::string> names;
  for (const auto& c : all) names.push_back(c.name);
  std::vector<Case> chosen;
  for (const auto& word : words_of(list)) {
    const auto at = std::find(names.begin(), names.end(), word);
    if (at == names.end()) levin::fail_unknown("speed", "case", word, names);
    chosen.push_back(all[static_cast<size_t>(at - names.begin())]);
  }
  if (list.empty()) {
    chosen = std::move(all);
    std::erase_if(chosen, [](const Case& c) { return c.named_only; });
  }
  std::erase_if(chosen, [&](const Case& c) { return c.cuda && !has_cuda; });
  return chosen;
}

/// Device time of a step by class of kernels: tables on stdout, JSON in a file.
void print_kernels(const std::vector<Case>& cases, const std::vector<std::string>& modes, levin::bench::Roof roof,
                   const std::string& file, const std::string& timeline) {
  auto all = nlohmann::json::array();
  std::ofstream lines;
  if (!timeline.empty()) lines.open(timeline);
  for (const auto& c : cases)
    for (const auto& mode : modes) {
      if (!c.cuda) continue;
      Running running(c, mode == "compiled");
      const auto step = running.timed(10);
      const auto profile =
          levin::bench::profile_kernels([&] { running.trained().step(); }, [&] { running.synchronize(); }, 3);
      auto work = c.work(levin::bench::step_bytes(c.precision, c.moments), roof);
      work.optimizer(static_cast<double>(running.trained().parameters));
      std::printf("%s\n", levin::bench::to_markdown(c.name + ", " + mode, profile, work, step).c_str());
      std::fflush(stdout);
      lines << "# " << c.name << ", " << mode << '\n' << levin::bench::to_timeline(profile);
      auto json = levin::bench::to_json(profile, work, step);
      json["name"] = c.name, json["mode"] = mode;
      all.push_back(std::move(json));
    }
  if (!file.empty()) std::ofstream(file) << all.dump(1) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const bool has_cuda = levin::detail::cuda_accelerator().device_count() > 0;
    const auto cases = chosen_cases(args.get("case", ""), has_cuda);
    constexpr bool kCompiles = kHasCompile<levin::FabricOptions>;
    const auto modes = words_of(args.get("mode", kCompiles ? "eager,compiled" : "eager"));
    const Settings settings{
        .rounds = args.get("rounds", 3), .seconds = args.get("seconds", 1.5), .turns = args.has("turns")};
    const levin::bench::Roof roof{.flops_per_s = args.get("tflops", 750.0) * 1e12,
                                  .bytes_per_s = args.get("terabytes", 4.27) * 1e12};
    const bool kernels = args.has("kernels"), list = args.has("list");
    const auto json = args.get("json", ""), timeline = args.get("timeline", "");
    args.check_all_used();
    LEVIN_CHECK(settings.rounds > 0, "[speed] --rounds must be positive, got ", settings.rounds);
    const std::vector<std::string> known_modes{"eager", "compiled"};
    for (const auto& mode : modes)
      if (std::find(known_modes.begin(), known_modes.end(), mode) == known_modes.end())
        levin::fail_unknown("speed", "mode", mode, known_modes);

    if (list) {
      for (const auto& c : cases) print({{"list", c.name}, {"title", c.title}, {"modes", modes}});
      return;
    }
    if (cases.empty() || (kernels && !has_cuda)) return print({{"skip", "no GPU"}});
    if (!kCompiles && std::find(modes.begin(), modes.end(), "compiled") != modes.end())
      return print({{"skip", "this Levin has no compiled mode"}});
    if (kernels) return print_kernels(cases, modes, roof, json, timeline);
    std::map<std::pair<std::string, std::string>, double> measured;  // ms by name and mode
    for (const auto& c : cases)
      for (const auto& mode : modes) {
        if (!c.cuda) at::set_num_threads(2);
        const auto figures = Running(c, mode == "compiled").measure(settings, mode);
        print(figures);
        const auto ms = measured[{c.name, mode}] = figures["ms"].get<double>();
        if (const auto other = measured.find({c.compared_with, mode}); other != measured.end())
          print({{"ratio", rounded(other->second / ms, 1e-3)},
                 {"of", c.name},
                 {"to", other->first.first},
                 {"mode", mode}});
      }
  });
}
