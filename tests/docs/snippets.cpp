// The pieces of code in README.md and docs/, so that they compile. check_docs compares them line by line; keep them
// verbatim.
// clang-format off
#include <levin/cli/train_main.h>
#include <levin/core/files.h>
#include <levin/core/words.h>
#include <levin/data/combined.h>
#include <levin/data/transforms/transforms.h>
#include <levin/distributed/launcher/launcher.h>
#include <levin/distributed/mesh.h>
#include <levin/generate/engine.h>
#include <levin/generate/generate.h>
#include <levin/generate/placed_model.h>
#include <levin/generate/serve/server.h>
#include <levin/io/images/image.h>
#include <levin/io/records/records.h>
#include <levin/io/weights/safetensors.h>
#include <levin/io/weights/libtorch.h>
#include <levin/io/weights/torch_file.h>
#include <levin/io/weights/weights.h>
#include <levin/levin.h>
#include <levin/models/decoder_sizes.h>
#include <levin/models/folder.h>
#include <levin/models/language_score.h>
#include <levin/models/registry.h>
#include <levin/models/resnet.h>
#include <levin/kernels/block_sparse/attention.h>
#include <levin/models/load_weights.h>
#include <levin/models/lora/lora.h>
#include <levin/models/sentence_embedding.h>
#include <levin/models/vit.h>
#include <levin/nn/checkpointing/activation_offload.h>
#include <levin/nn/checkpointing/checkpointing.h>
#include <levin/nn/context/split.h>
#include <levin/nn/experts/experts.h>
#include <levin/nn/experts/router_loss.h>
#include <levin/nn/layers.h>
#include <levin/nn/saved_tensors.h>
#include <levin/memory/estimate.h>
#include <levin/strategies/pipeline/drawing.h>
#include <levin/testing/ranks.h>
#include <levin/trainer/callbacks/early_stopping.h>
#include <levin/trainer/callbacks/gradient_accumulation_scheduler.h>
#include <levin/trainer/callbacks/lambda.h>
#include <levin/trainer/callbacks/checkpointing/model_checkpoint.h>
#include <levin/trainer/callbacks/model_summary.h>
#include <levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h>
#include <levin/trainer/callbacks/prediction_writer.h>
#include <levin/trainer/callbacks/progress_bar.h>
#include <levin/trainer/callbacks/timer.h>
#include <levin/trainer/trainer.h>

#include <iostream>

#include <gtest/gtest.h>

using namespace levin;

namespace {

// from_lightning.md
namespace from_lightning {

struct LitClassifier : levin::TrainModule {
  explicit LitClassifier(int64_t width, double rate = 1e-3) : lr(rate) {
    save_hyperparameters({{"width", width}, {"lr", rate}});
    net = register_module("net", torch::nn::Sequential(torch::nn::Linear(784, width), torch::nn::ReLU(), torch::nn::Linear(width, 10)));
  }
  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    auto loss = levin::cross_entropy(net->forward(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  levin::StepOutput validation_step(const levin::Batch& batch, const levin::StepInfo&) override {
    log("val_loss", levin::cross_entropy(net->forward(batch["image"]), batch["label"]), {.sync_dist = true});
    return {};
  }
  levin::Optimizers configure_optimizers() override {
    levin::optim::AdamW optimizer(parameters(), {.lr = lr});
    return {optimizer, levin::optim::CosineAnnealingLR(optimizer, {.t_max = 10})};
  }
  double lr;
  torch::nn::Sequential net = nullptr;
};

[[maybe_unused]] void fit(levin::DataLoader<levin::Batch> train_loader, levin::DataLoader<levin::Batch> val_loader) {
  levin::Trainer trainer({.precision = "bf16-mixed",
                          .callbacks = {levin::ModelCheckpoint({.monitor = "val_loss"}),
                                        levin::EarlyStopping({.monitor = "val_loss", .patience = 5})},
                          .max_epochs = 10,
                          .accumulate_grad_batches = 4});
  LitClassifier model(256);
  trainer.fit(model, train_loader, val_loader, {.ckpt_path = "last"});
}

[[maybe_unused]] void own_loop(const levin::Args& args, torch::nn::Linear model, levin::DataLoader<levin::Batch> train_loader) {
  levin::Fabric fabric({.strategy = "ddp", .devices = 2, .precision = "bf16-mixed"});
  fabric.launch(args);
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
  auto loader = fabric.setup_dataloaders(train_loader);
  for (auto& batch : loader) {
    fabric.backward(levin::cross_entropy(net(batch["image"]), batch["label"]));
    fabric.clip_gradients(net, optimizer, {.max_norm = 1.0});
    optimizer.step();
    optimizer.zero_grad();
  }
  fabric.save("run/last", {{"model", net}, {"optimizer", optimizer}});
}

struct Manual : levin::TrainModule {
  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    auto& optimizer = this->optimizer();
    auto loss = levin::mse_loss(net->forward(batch["x"]), batch["y"]);
    optimizer.zero_grad();
    manual_backward(loss);
    clip_gradients(optimizer, 1.0, "norm");
    optimizer.step();
    return loss;
  }
  torch::nn::Linear net = nullptr;
};

struct Digits : levin::DataModule {
  void setup(std::string_view) override { data.emplace("digits"); }
  levin::Loaders<levin::Batch> train_dataloader() override {
    return levin::make_loader(*data, {.batch_size = 64, .shuffle = true, .num_workers = 4});
  }
  std::optional<levin::ImageDataset> data;
};

struct PrintLoss : levin::Callback {
  void on_train_epoch_end(levin::TrainerContext& run) override { run.print(run.current_epoch(), " ", run.metric("train_loss").value_or(0)); }
};

[[maybe_unused]] void options() {
  levin::FsdpOptions{.cpu_offload = true};
  levin::DdpOptions{.static_graph = true};
  levin::DdpOptions{.comm_hook = "fp16"};
  levin::ZeroOptions{.stage = 3, .offload_param = {.device = "nvme", .nvme_path = "/tmp"}};
  levin::TrainerOptions{.plugins = {.grad_scaler = {.init_scale = 1024}}};
}

}  // namespace from_lightning

// nn.md
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    up = register_module("up", levin::nn::Linear(width, 4 * width));
    down = register_module("down", levin::nn::Linear(4 * width, width));
  }
  Tensor forward(const Tensor& x) { return x + down(at::gelu(up(x))); }
  levin::nn::Linear up = nullptr, down = nullptr;
};
LEVIN_MODULE(Block);

struct Timer : levin::Interceptor {
  double seconds = 0;
  void around(levin::Call& call) override {
    const auto start = std::chrono::steady_clock::now();
    call.proceed();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

[[maybe_unused]] void nn(const Tensor& x) {
  Block block(512);
  auto y = block(x);
  levin::Attachment kept = block->attach(std::make_shared<Timer>(), levin::Order::kProfiler);
}

// data.md
[[maybe_unused]] void data_files(std::vector<int64_t> (*tokenize)(std::string_view)) {
  levin::ImageDataset photos("photos/train", {.transform = levin::transforms::RandomResizedCrop{.size = 224}});
  levin::TokenDataset tokens("train.bin", {.length = 256, .vocab_size = 50257});
  levin::TextDataset reviews("reviews.csv", {.encode = tokenize, .length = 128});
  auto iris = levin::load_table("iris.csv", {.stack = "input"});
  auto cifar = levin::load_cifar10_or_drawn();
}

[[maybe_unused]] void policies(torch::nn::Sequential model) {
  auto units = levin::select_units(*model, levin::policy::by_class<Block>());
  for (auto& [name, unit, module] : units) std::cout << name << "\n";
}

[[maybe_unused]] void activations(torch::nn::Sequential model, const Tensor& x) {
  levin::checkpoint_activations(model, levin::policy::by_class<Block>());
  levin::checkpoint_activations(model, levin::policy::repeated(), {.keep_results_of = levin::CheckpointOptions::matrix_products()});
  levin::offload_activations(model, levin::policy::by_class<Block>(), {.min_bytes = 1 << 20});
  levin::SavedBytes saved(*model);
  auto loss = model->forward(x).sum();
  std::cout << saved.bytes() << "\n";
}

[[maybe_unused]] void deferred() {
  auto model = levin::init_module([] { return torch::nn::Sequential(Block(64), Block(64)); }, {.dtype = at::kBFloat16, .deferred = true});
  levin::materialize(*model->ptr(1));   // unit by unit, in any order
  levin::materialize(*model);
}

[[maybe_unused]] void models(const Tensor& images) {
  auto model = levin::models::vit_b_16({.num_classes = 10});
  auto logits = model(images);                       // [B, 3, 224, 224] to [B, 10]

  auto small = levin::models::vit({.image_size = 32, .patch_size = 4, .num_layers = 6, .num_heads = 3, .hidden_dim = 192,
                                   .mlp_dim = 768, .num_classes = 10});
}

[[maybe_unused]] void residual_networks(const Tensor& images) {
  auto model = levin::models::resnet50({.num_classes = 10});
  auto small = levin::models::resnet18({.num_classes = 10, .small_images = true});     // for 32 x 32
  auto other = levin::models::resnet({.layers = {3, 4, 6, 3}, .groups = 32, .width_per_group = 4});
  auto logits = model(images);
}

[[maybe_unused]] void models_by_name(const Tensor& images) {
  levin::models::ImageModel model = levin::models::make("wide_resnet50_2", {.num_classes = 1000});
  levin::models::replace_head(model, 10);
  auto logits = model(images);                       // [B, 10]
}

[[maybe_unused]] void decoders(const Tensor& tokens) {
  auto model = levin::models::gpt2();
  auto logits = model(tokens);                                        // [B, T] to [B, T, V]
  auto loss = model(tokens, levin::models::next_tokens(tokens));      // the full logits are never in memory

  auto other = levin::models::decoder({.vocab_size = 32000, .max_positions = 2048, .num_layers = 16, .num_heads = 16,
                                       .hidden_dim = 1024, .mlp_dim = 2816, .bias = false, .norm = "rms",
                                       .activation = "silu_gated", .positions = "rotary", .tied_head = false});
}

[[maybe_unused]] void language_models(const Tensor& tokens, const Tensor& mask) {
  auto model = levin::models::open_model("pythia-410m", {.dtype = at::kBFloat16, .device = at::kCUDA});
  auto logits = model.decoder(tokens);                                            // [B, T] to [B, T, V]
  auto loss = model.decoder(tokens, levin::models::next_tokens(tokens));          // to train it
  auto padded = model.decoder(tokens, Tensor(), mask);                            // rows of unequal length
  levin::models::save_model(model, "tuned", {.max_shard_size = 2'000'000'000});
}

[[maybe_unused]] void placed_generation() {
  const auto sizes = levin::models::open_model_meta("opt-30b");
  const auto placement = levin::place_units(levin::placement_units(sizes),
                                            {.device = at::kCUDA, .max_memory = {{"cuda:0", 8LL << 30}}, .workspace = 2LL << 30});
  std::cout << placement.describe() << "\n";
  auto model = levin::open_placed_model("opt-30b", {}, placement);
  auto rows = levin::generate(model.decoder, {{2, 100, 7}}, {.max_new_tokens = 64});
}

struct Speaker : levin::TrainModule {
  void on_validation_end() override {
    trainer().call_model([&] { rows = levin::generate(net, prompts, {.max_new_tokens = 64, .cuda_graphs = false}); });
  }

  levin::models::Decoder net = nullptr;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<levin::Generated> rows;
};

[[maybe_unused]] void generation(const std::vector<std::string>& prompts) {
  auto model = levin::models::open_model("pythia-410m", {.dtype = at::kBFloat16, .device = at::kCUDA});
  const auto tokenizer = levin::text::Tokenizer::from_folder("pythia-410m");
  auto options = levin::folder_generate_options("pythia-410m", {.max_new_tokens = 64, .temperature = 0.8, .top_p = 0.95});
  for (const auto& row : levin::generate(model.decoder, tokenizer, {"The sea", "A ship"}, options)) std::cout << row.text << "\n";

  levin::generate(model.decoder, tokenizer, prompts, options, [](const levin::GeneratedToken& token) {
    std::cout << token.text << std::flush;
    return true;  // false ends this row
  });

  levin::Engine engine(model.decoder, &tokenizer, {.max_rows = 64});
  engine.submit({.prompt = tokenizer.encode("The sea").ids,
                 .options = {.max_new_tokens = 64, .seed = 7},
                 .on_done = [](const levin::Generated& row) { std::cout << row.text << "\n"; }});
  engine.run_until_idle();
}

[[maybe_unused]] void serving() {
  levin::Server server(levin::models::open_model("pythia-410m"), levin::text::Tokenizer::from_folder("pythia-410m"), {.port = 8000});
  std::cout << server.url() << std::endl;
  server.run();  // until server.stop() is called in another thread
}

[[maybe_unused]] void adapters(levin::models::LanguageModel& model) {
  levin::models::add_lora(model, {.rank = 16, .alpha = 32, .target_modules = {"q_proj", "v_proj"}});
  levin::optim::AdamW opt(levin::models::lora_parameters(model), {.lr = 1e-4});
  levin::models::save_lora(model, "adapter");
}

[[maybe_unused]] void modules_beside_adapters(levin::models::LanguageModel& model) {
  levin::models::add_lora(model, {.rank = 16, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens", "lm_head"}});
}

[[maybe_unused]] void text_encoders(const Tensor& ids, const Tensor& mask) {
  auto model = levin::models::open_model("bert-base-uncased", {.head = "none"});
  auto hidden = model.encoder->hidden_states(ids, mask);                          // [B, T, D]
  auto vectors = levin::models::mean_embedding(hidden, mask);                     // or first_embedding(hidden)
}

[[maybe_unused]] void sentences(const std::vector<std::vector<int64_t>>& rows) {
  auto model = levin::models::open_model("all-MiniLM-L6-v2", {.head = "none"});
  auto vectors = levin::models::embed_rows(model, rows, *levin::models::sentence_pooling(model.folder));  // [rows, D]
}

[[maybe_unused]] void bytes_of_a_step(levin::Fabric& fabric, const std::function<void()>& train_step) {
  const auto before = levin::traffic(fabric.strategy().group());
  train_step();
  const auto step = levin::traffic(fabric.strategy().group()) - before;
  fabric.print(step.sent(), " bytes");
}

[[maybe_unused]] void saved_from_shards(levin::Fabric& fabric, levin::models::LanguageModel& model) {
  levin::models::save_model(model, "tuned", {.shards = fabric.strategy().shards()});
}

[[maybe_unused]] void quantized() {
  auto model = levin::models::open_model("llama-7b", {.device = at::kCUDA, .quantize = "nf4"});
  levin::models::add_lora(model, {.rank = 16, .alpha = 32});
  levin::optim::AdamW opt(levin::models::lora_parameters(model), {.lr = 1e-4});
}

[[maybe_unused]] void block_sparse(const std::vector<std::vector<std::vector<int32_t>>>& seen, const Tensor& qkv, const Tensor& mask) {
  auto plan = levin::kernels::block_plan(seen, 64, qkv.device());  // [head][block 1 to N - 2]: the blocks that it sees
  auto mixed = levin::kernels::block_sparse_attention(qkv, mask, plan);
}

[[maybe_unused]] void new_head() {
  auto model = levin::models::open_model("gpt2", {.head = "sequence_classification", .labels = {"negative", "positive"}, .pad_token = 50256});
}

[[maybe_unused]] void optimizers(const Block& model, const Tensor& loss, const std::vector<Tensor>& decay, const std::vector<Tensor>& no_decay) {
  namespace optim = levin::optim;
  optim::AdamW opt(model->parameters(), {.lr = 3e-4, .weight_decay = 0.01});
  optim::AdamW grouped({{.params = decay, .weight_decay = 0.1}, {.params = no_decay, .weight_decay = 0.0}}, {.lr = 3e-4});
  optim::CosineAnnealingLR scheduler(opt, {.t_max = 100});

  loss.backward();
  optim::clip_grad_norm(opt.all_params(), 1.0);
  opt.step();
  opt.zero_grad();
  scheduler.step();
}

// compile.md
template <class Loader>
void compiled_steps(const models::VisionTransformer& model, Loader& loader) {
  levin::Fabric fabric({.precision = "bf16-mixed", .compile = true});
  auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
  auto step = fabric.compile([&](levin::Batch& batch) {
    auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
    fabric.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss;
  });
  for (auto& batch : loader) step(batch);
  auto micro_step = fabric.compile(
      [&](levin::Batch& batch, bool last) {
        fabric.backward(levin::cross_entropy(net(batch["image"]), batch["label"]) / 4);
        if (!last) return;
        opt.step();
        opt.zero_grad();
      },
      {.accumulates_gradients = true});
  for (auto& batch : loader) micro_step(batch, true);
}

// fabric.md
template <class Loader>
void fabric_loop(levin::Args& args, const models::VisionTransformer& model, Loader& train_loader) {
  levin::Fabric fabric({.strategy = "ddp", .devices = 2, .precision = "bf16-mixed"});
  fabric.launch(args);                                        // starts the other ranks, joins the group
  auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
  auto loader = fabric.setup_dataloaders(train_loader);
  for (auto& batch : loader) {
    auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
    fabric.backward(loss);
    opt.step();
    opt.zero_grad();
  }
  for (auto [i, batch] : levin::enumerate(loader)) {
    const bool accumulating = (i + 1) % 4 != 0;
    {
      const auto no_sync = fabric.no_backward_sync(net, accumulating);
      fabric.backward(levin::cross_entropy(net(batch["image"]), batch["label"]) / 4);
    }
    if (!accumulating) {
      opt.step();
      opt.zero_grad();
    }
  }
  fabric.join_uneven_inputs(net, [&] {
    for (auto& batch : loader) { /* forward, backward, step */ }
  });
  int64_t epoch = 0;
  levin::State state{{"model", net}, {"optimizer", opt}, {"loader", loader}, {"epoch", epoch}};
  levin::save_checkpoint("run/last", state);
  levin::load_checkpoint("run/last", state);                    // everything bound is as it was
  levin::load_raw("vit/model.safetensors", net);                // weights from elsewhere
  levin::load_raw("optimizer.pt", opt);                         // the state of an optimizer from Python
  levin::save_raw("optimizer.pt", opt);                         // and to Python
  auto path = levin::latest_good_checkpoint("run");             // the newest that is complete and undamaged
  levin::consolidate_checkpoint("run/last", "run/full");        // what many ranks wrote, as one process writes it
  levin::load_raw("adam.pt", opt);                                            // of LibTorch's torch::save(adam, "adam.pt")
  levin::save_raw("adam.pt", opt, {.libtorch = true});                        // for torch::load(adam, "adam.pt")
  levin::save_raw("optimizer.pt", opt);                                       // Python: opt.load_state_dict(torch.load("optimizer.pt"))
  levin::load_raw("optimizer.pt", opt);                                       // of torch.save(opt.state_dict(), "optimizer.pt")
  levin::load_raw("last.ckpt", opt);                                          // of Lightning
  levin::load_raw("last.ckpt", opt, {.key = "optimizer_states.1"});           // of its second optimizer
  levin::save_raw("optimizer.pt", opt, {.shards = fabric.strategy().shards()});   // sharded: every rank calls, rank 0 writes
  fabric.load_raw("optimizer.pt", opt);                                       // sharded: each rank takes its rows
  fabric.save("run/last", state);                               // every rank writes its shard
  fabric.save("run/full", state, {.full = true});               // rank 0 writes what one process would write
  fabric.load("run/full", state);                               // of either kind; each rank reads its shard
  levin::FsdpOptions options{.state_dict_type = "full"};        // every save is full, the Trainer's too (default "sharded")
  levin::load_raw("net.pt", net);                                             // of torch::save(net, "net.pt")
  levin::load_raw("run.pt", net, {.key = "generator"});                       // a part of an archive that the program filled
  levin::load_checkpoint("run.pt", {{"generator", net}, {"optimizer", opt}, {"epoch", epoch}});   // all of its parts
  torch::load(net, "net.pt");                                                 // after fabric.setup too
  torch::save(net, "net.pt");
}

struct MirroredFormat : levin::CheckpointFormat {
  std::string_view name() const override { return "mirrored"; }
  bool recognizes(const std::filesystem::path& path) const override { return path.extension() == ".mirrored"; }
  void save(const std::filesystem::path& path, const levin::StateDict& state) const override {
    levin::save_checkpoint(path, state);
    levin::save_checkpoint("/backup" / path.filename(), state);
  }
  levin::StateDict load(const std::filesystem::path& path) const override {
    return levin::load_checkpoint(exists(path) ? path : "/backup" / path.filename());
  }
};

[[maybe_unused]] void checkpoint_format(const levin::State& state) {
  const auto format = std::make_shared<MirroredFormat>();
  levin::Trainer trainer({.plugins = {.checkpoint_format = format}});   // ModelCheckpoint and ckpt_path use it
  levin::Fabric fabric({.plugins = {.checkpoint_format = format}});     // fabric.save and fabric.load use it
  levin::save_checkpoint("last.mirrored", state, {.format = format.get()});
}

[[maybe_unused]] void data(const Tensor& images, const Tensor& labels, levin::Args& args, const std::function<void(Tensor, Tensor)>& train) {
  auto loader = levin::make_loader(levin::TensorDataset({{"image", images}, {"label", labels}}), {.batch_size = 64, .shuffle = true});
  for (auto& batch : loader) train(batch["image"], batch["label"]);
  fabric_loop(args, models::vit_b_16(), loader);
  compiled_steps(models::vit_b_16(), loader);
}

[[maybe_unused]] void threads(const std::vector<int64_t>& few) {
  levin::ImageDataset pictures("cifar10/train");
  auto train_loader = levin::make_loader(pictures, {.batch_size = 128, .shuffle = true, .num_workers = "auto"})
                          .transformed(levin::transforms::BatchNormalize{.flip_p = 0.5, .crop = 32, .padding = 4});
  auto small = levin::stages::map(levin::stages::subset(pictures, few), [](levin::Batch sample, levin::Random& random) {
    if (random.chance(0.1)) sample["label"] = torch::zeros({}, torch::kLong);
    return sample;
  });
  auto small_loader = levin::make_loader(small, {.batch_size = 8});
}

[[maybe_unused]] void decode_on_gpu() {
  namespace T = levin::transforms;
  levin::Transform crop = T::compose({T::RandomResizedCrop{.size = 224}, T::RandomHorizontalFlip{}});
  levin::ImageDataset photos("imagenet/train", {.transform = crop});
  auto loader = levin::make_loader(photos, {.batch_size = 256, .shuffle = true, .decode = "gpu"})
                    .transformed(T::BatchNormalize{.dtype = at::kBFloat16, .channels_last = true});
}

[[maybe_unused]] void combined(const DataLoader<Batch>& labelled, const DataLoader<Batch>& unlabelled, const std::function<void(Tensor, Tensor)>& train) {
  auto both = levin::combine({{"labelled", labelled}, {"unlabelled", unlabelled}}, {.mode = "max_size_cycle"});
  for (auto& batch : both) train(batch["labelled"]["image"], batch["unlabelled"]["image"]);
}

[[maybe_unused]] void loggers(const Tensor& loss, const Tensor& weights, const Tensor& image) {
  levin::Fabric fabric({.accelerator = "cpu", .loggers = {std::make_shared<levin::CsvLogger>("logs")}});
  fabric.log("loss", 0.25, /*step=*/1);
  const auto version = levin::next_version("logs");
  levin::CsvLogger csv("logs", {.version = version});
  levin::TensorBoardLogger board("logs", {.version = version});
  board.log_hyperparams({{"lr", 5e-5}, {"model", levin::StateDict{{"layers", 12}}}});
  board.log_metrics({{"loss", loss}, {"epoch", 3}}, /*step=*/100);
  board.log_histogram("weights", weights, /*step=*/100);
  board.log_image("sample", image, /*step=*/100);
}

[[maybe_unused]] void profilers(const std::function<void()>& train) {
  auto profiler = levin::make_profiler("simple");
  const auto step = profiler->register_action("run_training_batch");
  for (int i = 0; i < 100; ++i) {
    levin::Span span(profiler.get(), step);
    train();
  }
  profiler->describe();
}

[[maybe_unused]] void trainer_profiler() {
  levin::PyTorchProfilerOptions options{.schedule = levin::ProfilerSchedule{.wait = 2, .warmup = 1, .active = 3},
                                        .record_shapes = true,
                                        .profile_memory = true};
  levin::Trainer trainer({.max_epochs = 1, .profiler = std::make_shared<levin::PyTorchProfiler>(options)});
}

[[maybe_unused]] void profile_by_hand(const std::shared_ptr<torch::nn::Module>& model, DataLoader<Batch>& loader,
                                      const std::function<void(Batch&)>& train) {
  levin::profilers::Profile profile({.record_shapes = true, .dirpath = "runs/profile"});
  profile.watch(*model);
  profile.start();
  for (auto& batch : loader) {
    train(batch);
    profile.step();
  }
  profile.stop();
  std::cout << profile.table();
}

[[maybe_unused]] void io() {
  levin::SafetensorsFile file("model.safetensors");
  Tensor weight = file.read("fc.weight");
  levin::write_safetensors("copy.safetensors", {{"fc.weight", weight}}, {{"format", "pt"}});
}

[[maybe_unused]] void tokenizers() {
  const auto tokenizer = levin::text::Tokenizer::from_folder("gpt2");
  const auto encoding = tokenizer.encode("Hello, world");  // ids, tokens, offsets, special_mask, type_ids
  const std::string text = tokenizer.decode(encoding.ids);
  levin::text::DecodeStream stream(tokenizer);
  for (const auto id : encoding.ids) std::fputs(stream.step(id).c_str(), stdout);
  std::fputs(stream.finish().c_str(), stdout);
  const levin::text::ChatMessage messages[] = {{"user", "Hi"}};
  const std::string prompt = levin::text::apply_chat_template(tokenizer, messages);
  const auto ids = tokenizer.encode(prompt, {.add_special_tokens = false}).ids;
  const std::filesystem::path files[] = {"corpus.txt"};
  levin::write_file("tokenizer.json", levin::text::train_bpe(files, 32'000));
}

[[maybe_unused]] std::string records() {
  auto train = levin::open_records("imagenet/train-{000000..000146}.tar");
  levin::Record record = train->read(42);                       // any order, any thread
  const auto& jpeg = std::get<std::string>(*record.find("image"));

  auto writer = levin::create_records("train.tfrecord", {.classes = train->classes(), .shard_records = 10'000});
  for (int64_t i = 0; i < train->size(); ++i) writer->write(train->read(i));
  writer->close();                                              // train-000000.tfrecord, ...: now, and not before
  return jpeg;
}

[[maybe_unused]] void weight_files() {
  levin::TorchFile checkpoint("last.ckpt", {.root = "state_dict"});
  Tensor bias = checkpoint.read("net.bias");
  levin::write_torch_file("copy.pth", {{"net.bias", bias}});

  {
    levin::TorchFile file("net.pt");                                             // of torch::save(net, "net.pt")
    Tensor weight = file.read("encoder.0.weight");
    levin::write_libtorch_file("copy.pt", {{"encoder.0.weight", weight}});       // for torch::load(net, "copy.pt")
  }
  levin::WeightFile weights("vit/");
  for (const auto& entry : weights.entries()) std::cout << entry.name << " " << entry.dtype << "\n";
  Tensor head = weights.read("heads.head.weight");

  auto vit = levin::models::vit_b_16({.image_size = 384, .num_classes = 10});
  auto report = levin::models::load_weights(*vit, "vit_b_16.pth", {.ignore = {"heads.*"}, .interpolate_positions = true});
  levin::models::save_weights(*vit, "vit_cifar10.safetensors");
}

[[maybe_unused]] void images(std::span<const std::byte> bytes, std::span<uint8_t> slot) {
  Tensor image = levin::read_image("cat.jpg");                                   // uint8 [3, H, W], memory [H, W, 3]
  auto info = levin::image_info(bytes);                                          // size, channels, orientation
  Tensor part = levin::decode_image(bytes, {.region = levin::ImageRegion{.top = 16, .left = 40, .height = 224, .width = 224}});
  Tensor small = levin::decode_image(bytes, {.apply_exif = true, .at_least = 224});
  levin::decode_image_into(bytes, slot, {.mode = levin::ImageMode::kGray});      // no allocation
  levin::write_image("part.png", part);
  (void)image, (void)info, (void)small;
}

[[maybe_unused]] void collectives(const levin::Placement& placement, c10::Device device, const Tensor& losses, const std::string& hostname) {
  auto group = levin::join_group(placement, device);         // every rank; a world of one communicates with nobody
  auto loss = losses.mean();
  group->all_reduce(loss, levin::ReduceOp::kMean);
  auto names = levin::gather_strings(*group, hostname);
  group->barrier("end of epoch");
}

[[maybe_unused]] void meshes(const std::shared_ptr<Collective>& group, Tensor x) {
  Mesh mesh(group, {{"data", -1}, {"tensor", 2}});   // the last axis runs fastest; -1 is what the others leave
  mesh.group("tensor").all_reduce(x);
  mesh.coordinate("data");
}

[[maybe_unused]] void ranks() {
  using levin::testing::run_ranks;
  auto results = run_ranks(2, [](Collective& group) {
    auto x = at::ones({3});
    group.all_reduce(x);
    EXPECT_EQ(x[0].item<float>(), 2);    // a failure names the rank
    return x;
  });
}

[[maybe_unused]] void environments() {
  auto environment = levin::detect_environment();                               // or by name: "kubeflow"
  levin::Placement place = environment->placement({.devices = 4, .num_nodes = 2});   // 0: whatever was started
}

[[maybe_unused]] int launching() {
  levin::LaunchSpec spec{.command = {"./app", "--steps", "100"}, .nproc = 4, .max_restarts = 1};
  return levin::launch(spec);   // 0, the failed rank's status, or 128 + a signal; throws levin::Error when nothing could be started
}

// trainer.md
struct Classifier : levin::TrainModule {
  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  levin::StepOutput validation_step(const levin::Batch& batch, const levin::StepInfo&) override {
    log("val_loss", levin::cross_entropy(net(batch["image"]), batch["label"]), {.sync_dist = true});
    return {};
  }
  levin::Optimizers configure_optimizers() override {
    levin::optim::AdamW opt(parameters(), {.lr = 5e-5});
    return {opt, {.scheduler = levin::optim::CosineAnnealingLR(opt, {.t_max = 10}), .interval = "epoch"}};
  }
  levin::models::VisionTransformer net = register_module("net", levin::models::vit_b_16({.num_classes = 10}));
};

[[maybe_unused]] void trainers(const levin::Loaders<Batch>& train_loader, const levin::Loaders<Batch>& val_loader, const levin::Loaders<Batch>& test_loader) {
  levin::Trainer trainer({.devices = 2,
                          .precision = "bf16-mixed",
                          .callbacks = {levin::ModelCheckpoint({.monitor = "val_loss", .save_top_k = 3})},
                          .max_epochs = 10,
                          .val_check_interval = "500 steps"});
  Classifier classifier;
  trainer.fit(classifier, train_loader, val_loader);
  trainer.test(classifier, test_loader, {.ckpt_path = "best"});
}

[[maybe_unused]] void accumulating_trainer() {
levin::Trainer trainer({.max_epochs = 10, .accumulate_grad_batches = 4});
}

// strategies.md
[[maybe_unused]] void sharded_trainer() {
levin::Trainer trainer({.strategy = "fsdp", .devices = 8, .precision = "bf16-mixed"});
}

void sync_batch_norm_trainer() {
levin::Trainer trainer({.devices = 2, .sync_batchnorm = true});
}

// callbacks.md
[[maybe_unused]] void callbacks(levin::TrainModule& module, const levin::Loaders<Batch>& train, const levin::Loaders<Batch>& val, const levin::Loaders<Batch>& test) {
  auto checkpoint = std::make_shared<levin::ModelCheckpoint>(levin::ModelCheckpointOptions{.monitor = "val_loss", .save_top_k = 3});
  levin::Trainer trainer({.callbacks = {checkpoint, levin::EarlyStopping({.monitor = "val_loss"})}, .max_epochs = 100});
  trainer.fit(module, train, val);
  std::cout << checkpoint->best_model_path() << "\n";

  levin::ModelCheckpoint best({.filename = "{epoch}-{val_loss:.3f}", .monitor = "val_loss", .save_last = "link", .save_top_k = 3});
  levin::ModelCheckpoint hourly({.save_top_k = -1, .train_time_interval = "1 h"});
  levin::OnExceptionCheckpoint rescue({.dirpath = "run"});   // run/on_exception.ckpt
  levin::EarlyStopping patient({.monitor = "val_acc", .min_delta = 0.001, .patience = 5, .mode = "max"});
  levin::Timer timer({.duration = "00:11:30:00"});   // days, hours, minutes, seconds
  levin::GradientAccumulationScheduler accumulate({.scheduling = {{0, 8}, {4, 2}}});   // 8 batches, from epoch 4 on 2
  levin::Trainer quiet({.callbacks = {levin::TrainerProgressBar({.refresh_rate = 100, .leave = false})}});
  levin::ModelSummary summary({.max_depth = 2});
  const auto make_step = []() -> levin::TrainingStep {
    auto net = levin::models::vit_l_16({.num_classes = 10});
    return {net.ptr(), [net](const levin::Batch& batch) mutable { return net(batch["image"]); },
            [](const Tensor& logits, const levin::Batch& batch) { return levin::cross_entropy(logits, batch["label"]); }};
  };
  levin::Trainer measured({.callbacks = {levin::MemoryReport({.make_step = make_step})}});
  levin::Trainer writing({.callbacks = {levin::SafetensorsPredictionWriter({.output_dir = "predictions"})}});
  writing.predict(module, test, {.return_predictions = false});   // predictions/batch_00000-rank_0.safetensors, ...
  levin::LambdaCallback announce({.on_train_epoch_end = [](levin::TrainerContext& run) { run.print("epoch ", run.current_epoch(), " is done"); }});
}

// callbacks_tuning.md
struct LastEpochs : levin::WeightAveraging {   // the mean of the weights after each epoch, from the 80th on
  bool should_update(std::optional<int64_t>, std::optional<int64_t> epoch) const override { return epoch && *epoch >= 80; }
};

struct ThawEncoder : levin::BaseFinetuning {
  void freeze_before_training(levin::TrainModuleBase& module) override { freeze(*module.named_children()["encoder"]); }
  void finetune_function(levin::TrainModuleBase& module, int64_t epoch, levin::Optimizer& optimizer) override {
    if (epoch == 5) unfreeze_and_add_param_group(*module.named_children()["encoder"], optimizer, {.lr = 1e-4});
  }
};

[[maybe_unused]] void tuning(levin::TrainModule& module, const levin::Loaders<Batch>& train) {
  levin::Trainer trainer({.callbacks = {levin::LearningRateMonitor(), levin::EMAWeightAveraging({.decay = 0.999})}, .max_epochs = 10});
  levin::LearningRateMonitor rates({.logging_interval = "step", .log_momentum = true});   // lr-AdamW, lr-AdamW-momentum
  levin::DeviceStatsMonitor memory({.cpu_stats = true});
  levin::ThroughputMonitor speed({.length_fn = [](const levin::AnyBatch& batch) { return batch.get<levin::Batch>()["tokens"].numel(); }});
  levin::SpikeDetection spikes({.window = 10, .rtol = 2.0, .exclude_batches_path = "run"});
  levin::StochasticWeightAveraging swa({.swa_lrs = 0.01, .swa_epoch_start = 0.75, .annealing_epochs = 5});
  levin::EMAWeightAveraging ema({.decay = 0.9999, .update_every_n_steps = 4, .update_starting_at_step = 1000});
  auto finder = std::make_shared<levin::LearningRateFinder>(levin::LearningRateFinderOptions{.min_lr = 1e-6, .num_training_steps = 200});
  levin::Trainer searching({.callbacks = {finder}, .max_epochs = 10});
  searching.fit(module, train);
  std::cout << finder->results().suggestion().value() << "\n";
  levin::BatchSizeFinder largest({.mode = "binsearch", .init_val = 16});
  levin::BackboneFinetuning thaw({.unfreeze_backbone_at_epoch = 3, .backbone_initial_ratio_lr = 0.1});
  levin::ModelPruning pruning({.pruning_fn = "l1_unstructured", .parameter_names = {"weight"}, .amount = 0.2, .verbose = 1});
}

// optim.md
[[maybe_unused]] void partial(torch::nn::Linear model, const Tensor& loss, levin::optim::AdamW opt, const std::vector<Tensor>& unit_params, const std::vector<Tensor>& masters, const std::vector<Tensor>& copies) {
  namespace optim = levin::optim;
  opt.impl()->step_params(unit_params);                  // the state and steps of others stay
  optim::host_step(opt, masters, copies);                // and write 16-bit copies of the new values

  optim::OptimizerInBackward stepping(optim::AdamW(model->parameters(), {.lr = 3e-4}));
  loss.backward();     // each parameter moves as soon as its gradient is complete, and the gradient is freed
  stepping.step();     // ends the step; parameters whose gradient came another way move here
}

// optim.md
[[maybe_unused]] void averaged(torch::nn::Linear model, torch::nn::Linear more, levin::optim::AdamW opt) {
  namespace optim = levin::optim;
  opt.add_param_group(more->parameters(), {{"lr", 1e-4}});
  optim::AveragedWeights ema(*model, {.ema_decay = 0.999});
  opt.step();
  ema.update();
  ema.swap();   // evaluate the average; again to continue with the weights
}

// transforms.md
[[maybe_unused]] void transforms_page(std::span<const std::byte> file, uint64_t seed, uint64_t epoch, uint64_t index, levin::Batch& batch) {
  namespace T = levin::transforms;
  levin::Transform train = T::compose({T::RandomResizedCrop{.size = 224}, T::RandomHorizontalFlip{}, T::RandAugment{},
                                       T::Normalize{}, T::RandomErasing{.p = 0.25}});
  levin::Transform test = T::compose({T::Resize{.size = 256}, T::CenterCrop{.size = 224}, T::Normalize{}});
  levin::Random random(seed, epoch, index);
  Tensor image = train.decode(file, random);
  Tensor small = T::resize(image, 64, 64, T::Interpolation::kBicubic);
  Tensor turned = T::rotate(image, 30, {.interpolation = T::Interpolation::kBilinear, .fill = {124, 116, 104}});
  levin::BatchTransform recipe = T::compose_batch({
      T::BatchNormalize{.mean = {0.4914, 0.4822, 0.4465}, .std = {0.247, 0.243, 0.261}, .dtype = at::kBFloat16,
                        .channels_last = true, .flip_p = 0.5, .crop = 32, .padding = 4},
      T::MixUp{.alpha = 0.2, .num_classes = 10}});
  recipe(batch, random);
}

// memory.md
[[maybe_unused]] void go_down_the_ladder() {
  const auto blocks = levin::policy::by_class<levin::models::EncoderBlock>();
  levin::Fabric fabric({.strategy = levin::FsdpOptions{.auto_wrap_policy = blocks,
                                                       .cpu_offload = true,
                                                       .activation_checkpointing_policy = blocks},
                        .precision = "bf16-true"});
}

[[maybe_unused]] void predict_memory(const levin::Batch& batch, torch::nn::Module* model, c10::Device device,
                                     const std::function<Tensor()>& step, levin::Optimizer optimizer,
                                     const levin::Fabric& fabric) {
  auto estimate = levin::estimate_memory(
      [] { return levin::models::vit_l_16({.num_classes = 10}); },
      [](auto& model, const levin::Batch& batch) { return model(batch["image"]); },
      [](const Tensor& logits, const levin::Batch& batch) { return levin::cross_entropy(logits, batch["label"]); },
      batch, {.strategy = "fsdp", .precision = "bf16-mixed", .world_size = 8});
  std::cout << levin::format_bytes(estimate.device_peak) << " in " << levin::to_string(estimate.peak_part) << "\n";
  const auto make = [] { return levin::models::vit_l_16({.num_classes = 10}); };
  const auto forward = [](auto& net, const levin::Batch& given) { return net(given["image"]); };
  const auto loss_of = [](const Tensor& logits, const levin::Batch& given) {
    return levin::cross_entropy(logits, given["label"]);
  };
  auto under = fabric.strategy().estimate(make, forward, loss_of, batch,
                                          levin::MemoryQuestion{.precision = "bf16-mixed"});
  std::cout << levin::format_bytes(under.device_peak) << ", " << levin::format_bytes(under.host) << " on the host\n";
  levin::MemoryRecorder recorder(*model, device);
  recorder.begin_step();
  Tensor loss = step();
  recorder.begin_backward();
  loss.backward();
  recorder.begin_optimizer();
  optimizer.step();
  recorder.end_step();
  levin::write_memory_timeline("memory", recorder.timeline(), &estimate.timeline);
}

}  // namespace

// from_lightning.md
namespace from_lightning_cli {
struct LitModel : levin::TrainModule {};
struct LitData : levin::DataModule {};

int main(int argc, char** argv) {
  return levin::train_main<LitModel, LitData>(argc, argv);
}
}  // namespace from_lightning_cli

// fabric.md
void goes_back_to_the_last_good_checkpoint() {
  levin::Fabric fabric;
  torch::nn::Linear model(2, 2);
  auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters()));
  std::vector<levin::Batch> loader;
levin::FiniteWatch watch(fabric);
int returns = 0;
for (int64_t step = 0; auto& batch : loader) {
  auto loss = levin::cross_entropy(net(batch["x"]), batch["y"]);
  fabric.backward(loss);
  if (watch.found_bad(loss, opt)) {   // on all ranks, at the same step
    LEVIN_CHECK(returns++ < 3, "the loss stays nan or inf");
    fabric.load("run/good", {{"net", net}, {"optimizer", opt}});
    opt.zero_grad();
    continue;                         // the loop continues with the next batch
  }
  opt.step();
  opt.zero_grad();
  if (++step % 100 == 0 && !watch.found_bad_before_save()) fabric.save("run/good", {{"net", net}, {"optimizer", opt}});
}
}

// parallelism.md
void parallelism_training() {
levin::Fabric fabric({.strategy = levin::TensorParallelOptions{.size = 2, .sequence_parallel = true}, .devices = 8});
}
void parallelism(const levin::Placement& placement, c10::Device device, const std::string& folder,
                 const std::vector<std::vector<int64_t>>& prompts, const levin::GenerateOptions& options) {
auto ranks = levin::join_group(placement, device);                      // every rank
auto model = levin::models::open_model(folder, {.device = device, .ranks = ranks});
auto rows = levin::generate(model.decoder, prompts, options);           // every rank, with the same prompts
}
void parallelism_meshes() {
levin::Fabric fabric({.strategy = levin::ModelParallelOptions{.mesh = {.dp_shard = 4, .tp = 2}}, .devices = 8});
}
void parallelism_pipeline(levin::models::Decoder model, levin::DataLoader<levin::Batch>& loader) {
levin::Fabric fabric({.strategy = levin::PipelineOptions{.size = 4, .schedule = "1f1b", .microbatches = 8}, .devices = 8});
auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
for (auto& batch : loader) {
  auto loss = fabric.forward_backward(net, batch, [&](auto& part) { return net(part["tokens"], part["targets"]); });
  opt.step();
  opt.zero_grad();
}
}
void parallelism_experts() {
levin::Fabric fabric({.strategy = levin::ExpertParallelOptions{.size = 4}, .devices = 8});   // each expert on 2 ranks
}
void parallelism_expert_mesh() {
levin::Fabric fabric({.strategy = levin::ModelParallelOptions{.mesh = {.dp_shard = 4, .tp = 2, .ep = 2}}, .devices = 8});
}
void nn_experts(const at::Tensor& x, at::Tensor loss) {
levin::nn::Experts experts(levin::nn::ExpertsOptions{.count = 8, .per_token = 2, .dim = 512, .width = 1408});
levin::nn::RouterRecords routers;                                      // routers leave their records here
auto y = experts(x);                                                   // [..., D] to [..., D]
loss = loss + 0.01 * levin::nn::balance_loss(routers.records());       // and nn::router_z_loss
}
void parallelism_pipeline_schedules() {
auto schedule = levin::make_pipeline_schedule("zb1p", /*ranks=*/4, /*microbatches=*/8);
auto played = levin::simulate(schedule, {.forward = 1, .backward_input = 1.2, .backward_weight = 0.8, .transfer = 0.1});
levin::write_drawing("zb1p.svg", picture_of(timeline_of(schedule, played)));
}
void parallelism_context(levin::models::Decoder model, const at::Tensor& tokens, const levin::Mesh& mesh) {
levin::Fabric fabric({.strategy = levin::ContextParallelOptions{.size = 4}, .devices = 8});  // 2 batches over 4 ranks each
auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-4}));
auto loss = net(tokens, levin::models::next_tokens(tokens));                                 // tokens [B, T], whole
levin::split_context(*model, {.size = 4}, mesh.shared_group("cp"));   // every rank
}

// config.md
struct Regression : levin::TrainModule {
  struct Options {
    int64_t inputs = 2;
    std::string loss = "mse";

    void fields(auto f) {
      f("inputs", inputs, "numbers of a sample");
      f("loss", loss, "what is made small", {"mse", "l1"});
    }
  };

  explicit Regression(const Options& options) : layer(register_module("layer", torch::nn::Linear(options.inputs, 1))) {}
  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    return levin::mse_loss(layer(batch["x"]), batch["y"]);
  }
  torch::nn::Linear layer;
};

struct Samples : levin::DataModule {};

int main(int argc, char** argv) {
  return levin::train_main<Regression, Samples>(argc, argv, {.defaults = "optimizer: {class: SGD, lr: 0.1}"});
}
