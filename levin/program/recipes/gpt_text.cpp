#include "levin/program/recipes/gpt_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/random.h"
#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/nn/tie.h"
#include "levin/program/recipes.h"
#include "levin/trainer/context.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

nlohmann::ordered_json mixtral_json(const models::DecoderOptions& sizes) {
  return {{"architectures", {"MixtralForCausalLM"}},
          {"model_type", "mixtral"},
          {"vocab_size", sizes.vocab_size},
          {"max_position_embeddings", sizes.max_positions},
          {"hidden_size", sizes.hidden_dim},
          {"intermediate_size", sizes.experts.width},
          {"num_hidden_layers", sizes.num_layers},
          {"num_attention_heads", sizes.num_heads},
          {"num_key_value_heads", sizes.num_heads},
          {"num_local_experts", sizes.experts.count},
          {"num_experts_per_tok", sizes.experts.per_token},
          {"router_aux_loss_coef", sizes.balance_loss},
          {"output_router_logits", sizes.balance_loss > 0},
          {"hidden_act", "silu"},
          {"rms_norm_eps", sizes.norm_eps},
          {"rope_theta", sizes.rotary_base},
          {"attention_dropout", sizes.attention_dropout},
          {"sliding_window", nullptr},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

nlohmann::ordered_json gpt2_json(const models::DecoderOptions& sizes) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", sizes.vocab_size},
          {"n_positions", sizes.max_positions},
          {"n_embd", sizes.hidden_dim},
          {"n_layer", sizes.num_layers},
          {"n_head", sizes.num_heads},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", sizes.dropout},
          {"embd_pdrop", sizes.dropout},
          {"attn_pdrop", sizes.attention_dropout},
          {"layer_norm_epsilon", sizes.norm_eps},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

std::string config_json(const models::DecoderOptions& sizes, const text::Tokenizer& tokenizer) {
  auto json = sizes.experts.count > 0 ? mixtral_json(sizes) : gpt2_json(sizes);
  if (const auto& end = tokenizer.config().eos_token)
    if (const auto id = tokenizer.token_to_id(*end)) json["bos_token_id"] = json["eos_token_id"] = *id;
  return json.dump(2) + "\n";
}

/// The part of a checkpoint's names below "net.".
StateDict net_state(const StateDict& module) {
  constexpr std::string_view kPrefix = "net.";
  StateDict state;
  for (const auto& [name, value] : module)
    if (name.starts_with(kPrefix)) state[name.substr(kPrefix.size())] = value;
  return state;
}

}  // namespace

GptText::GptText(Options options) : options_(std::move(options)) {
  LEVIN_CHECK(options_.vocab_multiple > 0, "[gpt_text] model.vocab_multiple ", options_.vocab_multiple,
              " must be positive");
  LEVIN_CHECK(options_.block_size >= 2, "[gpt_text] model.block_size ", options_.block_size, " must be 2 or more");
  LEVIN_CHECK(options_.sample_tokens >= 0 && options_.temperature >= 0 && options_.top_k >= 0,
              "[gpt_text] model.sample_tokens, model.temperature and model.top_k must not be negative");
  LEVIN_CHECK(options_.dropout >= 0 && options_.dropout < 1, "[gpt_text] model.dropout ", options_.dropout,
              " must be 0 or more, and less than 1");
  sizes_ = {.vocab_size = 1,
            .max_positions = options_.block_size,
            .num_layers = options_.n_layer,
            .num_heads = options_.n_head,
            .hidden_dim = options_.n_embd,
            .bias = options_.bias,
            .dropout = options_.dropout,
            .attention_dropout = options_.dropout};
  if (options_.experts != 0) take_experts();
  models::check_options(sizes_);
}

void GptText::take_experts() {
  LEVIN_CHECK(options_.experts_per_token > 0, "[gpt_text] model.experts_per_token must be positive");
  sizes_.bias = false;
  sizes_.norm = "rms";
  sizes_.activation = "silu_gated";
  sizes_.positions = "rotary";
  const auto width = 4 * options_.n_embd / options_.experts_per_token;  // a token costs what it does in GPT-2
  sizes_.experts = {.count = options_.experts,
                    .per_token = options_.experts_per_token,
                    .width = options_.expert_dim > 0 ? options_.expert_dim : std::max<int64_t>(1, width),
                    .capacity_factor = options_.capacity_factor};
  sizes_.balance_loss = options_.balance_loss;
  sizes_.router_z_loss = options_.router_z_loss;
}

void GptText::use_data(std::shared_ptr<GptTextData> data) {
  data_ = std::move(data);
  data_->set_block_size(options_.block_size);
}

void GptText::configure_model() {
  if (net) return;
  const auto many = options_.vocab_multiple;
  const auto& tokenizer = data_->tokens().tokenizer;
  if (options_.weights.empty()) {
    sizes_.vocab_size = (tokenizer.id_end() + many - 1) / many * many;
    config_ = config_json(sizes_, tokenizer);
    net = register_module("net", models::Decoder(sizes_));
  } else {
    begin_with(options_.weights);
  }
  for (const auto& [name, parameter, aliases] : named_unique_parameters(*this))
    if (parameter.dim() < 2) vectors_.insert(name);
  prompt_ids();  // a prompt that cannot be written is said now
}

void GptText::begin_with(const fs::path& folder) {
  const auto model = models::open_model(folder, {.dtype = at::kFloat});
  const std::string wanted = options_.experts > 0 ? "mixtral" : "gpt2";
  LEVIN_CHECK(model.model_type == wanted, "[gpt_text] model.weights: \"", folder.string(), "\" is of ",
              model.model_type, ", not of ", wanted,
              model.model_type == "mixtral" ? " (model.experts says that there are experts)" : "");
  sizes_ = model.decoder->options;
  if (options_.experts > 0) {
    sizes_.experts.capacity_factor = options_.capacity_factor;
    sizes_.balance_loss = options_.balance_loss;
    sizes_.router_z_loss = options_.router_z_loss;
  }
  sizes_.dropout = sizes_.attention_dropout = options_.dropout;
  sizes_.embedding_dropout = {};
  LEVIN_CHECK(options_.block_size <= sizes_.max_positions, "[gpt_text] model.block_size ", options_.block_size,
              " is more than the ", sizes_.max_positions, " positions of \"", folder.string(), "\"");
  const auto tokens = data_->tokens().tokenizer.id_end();
  LEVIN_CHECK(tokens <= sizes_.vocab_size, "[gpt_text] the tokenizer has ", tokens, " tokens, \"", folder.string(),
              "\" only ", sizes_.vocab_size, "; --data.tokenizer takes the folder of its tokenizer");
  config_ = read_file(folder / "config.json");
  net = register_module("net", models::Decoder(sizes_));
  load_module_state_dict(*net, module_state_dict(*model.decoder));
}

StepOutput GptText::training_step(const Batch& batch, const StepInfo&) {
  auto loss = net(batch["input"], batch["target"]);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

StepOutput GptText::evaluate(const Batch& batch, const char* stage) {
  auto loss = net(batch["input"], batch["target"]);
  log(fmt::format("{}_loss", stage), loss, {.prog_bar = true, .sync_dist = true});
  const auto& text = data_->tokens();
  if (text.val_characters > 0) {
    const auto per_character = static_cast<double>(text.val_tokens) / static_cast<double>(text.val_characters);
    log(fmt::format("{}_bpc", stage), loss * (per_character / std::log(2.0)), {.sync_dist = true});
  }
  return loss;
}

std::vector<int64_t> GptText::prompt_ids() const {
  const auto& tokenizer = data_->tokens().tokenizer;
  if (options_.prompt.empty()) {
    const auto& end = tokenizer.config().eos_token;
    if (const auto id = end ? tokenizer.token_to_id(*end) : std::nullopt) return {*id};
    const auto line_end = tokenizer.encode("\n", {.add_special_tokens = false}).ids;
    return line_end.empty() ? std::vector<int64_t>{0} : line_end;
  }
  auto ids = tokenizer.encode(options_.prompt, {.add_special_tokens = false}).ids;
  // A tokenizer of characters leaves out what it does not know.
  LEVIN_CHECK(!ids.empty() && tokenizer.decode(ids, /*skip_special_tokens=*/false) == options_.prompt,
              "[gpt_text] model.prompt \"", options_.prompt, "\" has characters that the text does not have");
  return ids;
}

std::vector<int64_t> GptText::sample(models::Decoder& model, int64_t number, const CallModel& call) {
  auto ids = prompt_ids();
  // Its own random numbers: a sample changes nothing in the training.
  Random random(at::detail::getDefaultCPUGenerator().current_seed(), static_cast<uint64_t>(global_step()),
                static_cast<uint64_t>(number));
  GenerateOptions options{.temperature = options_.temperature, .top_k = options_.top_k, .cuda_graphs = false};
  options.suppress_tokens.resize(static_cast<size_t>(sizes_.vocab_size - data_->tokens().tokenizer.id_end()));
  std::iota(options.suppress_tokens.begin(), options.suppress_tokens.end(), data_->tokens().tokenizer.id_end());
  const auto wanted = static_cast<int64_t>(ids.size()) + options_.sample_tokens;
  while (static_cast<int64_t>(ids.size()) < wanted) {
    // A sample that is longer than the context begins again behind half of it.
    auto context = static_cast<int64_t>(ids.size());
    if (context >= options_.block_size) context = std::max<int64_t>(1, options_.block_size / 2);
    options.max_new_tokens = std::min(wanted - static_cast<int64_t>(ids.size()), options_.block_size - context);
    options.seed = random.bits64();
    call([&] {
      const auto rows = generate(model, {std::vector<int64_t>(ids.end() - context, ids.end())}, options);
      ids.insert(ids.end(), rows[0].ids.begin(), rows[0].ids.end());
    });
  }
  return ids;
}

std::vector<int64_t> GptText::sample_whole() {
  auto& fabric = trainer().fabric();
  const auto state = full_state_dict(*net, *fabric.strategy().shards());
  if (!fabric.is_global_zero()) return prompt_ids();
  models::Decoder whole(sizes_);
  load_module_state_dict(*whole, state);
  whole->to(fabric.device());
  whole->eval();
  return sample(whole, 0, [](const auto& call) { call(); });
}

StepOutput GptText::predict_step(const Batch& batch, const StepInfo&) {
  LEVIN_CHECK(!trainer().runs_in_parts(), "[gpt_text] predict needs a model that a rank can run, and strategy \"",
              trainer().fabric().strategy().name(),
              "\" cuts it into stages; use trainer.strategy \"fsdp\" or one device");
  std::vector<Tensor> rows;
  const auto numbers = batch["index"].cpu();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const auto ids = sample(net, numbers[i].item<int64_t>(), [](const auto& call) { call(); });
    print(data_->tokens().tokenizer.decode(ids));
    rows.push_back(at::tensor(ids, at::kLong));
  }
  return at::stack(rows);
}

void GptText::on_validation_end() {
  auto& run = trainer();
  if (run.sanity_checking()) return;
  if (const auto loss = run.metric("val_loss"))
    print(fmt::format("step {}: val_loss {:.4f}, perplexity {:.2f}, {:.3f} bits per character", run.global_step(),
                      *loss, std::exp(*loss), run.metric("val_bpc").value_or(0)));
  speak();
}

void GptText::speak() {
  auto& run = trainer();
  spoken_at_ = run.global_step();
  if (options_.sample_tokens == 0) return;
  const auto ids =
      run.runs_in_parts() ? sample_whole() : sample(net, 0, [&run](const auto& call) { run.call_model(call); });
  const auto spoken = data_->tokens().tokenizer.decode(ids);
  print(spoken, "\n");
  if (!run.fabric().is_global_zero()) return;
  for (const auto& logger : run.loggers()) logger->log_text("sample", spoken, run.global_step());
}

void GptText::on_fit_end() {
  auto& run = trainer();
  auto& fabric = run.fabric();
  if (run.plan().fast_dev_run > 0 || run.plan().barebones) return;
  if (spoken_at_ != run.global_step()) {
    const at::NoGradGuard no_grad;
    eval();
    speak();
  }
  // Weights may be sharded: they go through a checkpoint that one process could have written.
  const auto folder = run.log_dir() / "model", weights = run.log_dir() / ".model_weights";
  State state{{"model", static_cast<torch::nn::Module&>(*this)}};
  fabric.save(weights.string(), state, SaveOptions{.full = true});
  if (fabric.is_global_zero()) {
    auto decoder = models::Decoder(sizes_);
    load_module_state_dict(*decoder, net_state(load_checkpoint(weights).at("model").to_dict()));
    save_gpt_text(decoder, config_, data_->tokens(), folder);
    fs::remove_all(weights);
    print("Model: ", folder.string());
  }
  fabric.barrier("model folder");
}

void GptText::on_save_checkpoint(StateDict& checkpoint) {
  checkpoint["tokenizer"] = data_->tokens().fingerprint;
}

void GptText::on_load_checkpoint(StateDict& checkpoint) {
  const auto* saved = checkpoint.find("tokenizer");
  LEVIN_CHECK(!saved || saved->to_string() == data_->tokens().fingerprint,
              "[gpt_text] the checkpoint was trained with another tokenizer than this text gives; name its text by "
              "--data.file, or its model folder by --data.tokenizer");
}

TrainingStep GptText::make_step() const {
  models::Decoder made(sizes_);
  return {made.ptr(), [made](const Batch& batch) mutable { return made(batch["input"], batch["target"]); },
          [](const Tensor& loss, const Batch&) { return loss; }};
}

void save_gpt_text(const models::Decoder& decoder, const std::string& config, const TextTokens& tokens,
                   const fs::path& folder) {
  auto sizes = decoder->options;
  const bool experts = sizes.experts.count > 0;
  sizes.bias = !experts;
  models::Decoder whole(sizes);
  const at::NoGradGuard no_grad;
  auto targets = whole->named_parameters();
  for (const auto& [name, parameter, aliases] : named_unique_parameters(*decoder))
    targets[name].copy_(parameter);  // biases that are new are zero
  models::save_model({.model_type = experts ? "mixtral" : "gpt2",
                      .decoder = whole,
                      .config = models::ModelConfig(config, "config.json"),
                      .folder = tokens.tokenizer_folder},
                     folder, {.overwrite = true});
}

Recipe gpt_text() {
  return {"gpt_text", "language model on a text of your own with GPT-2",
          R"(trainer:
  max_steps: 2000
  val_check_interval: 250
  check_val_every_n_epoch: null
  limit_val_batches: 20
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 1e-3
  betas: [0.9, 0.99]
  weight_decay: 0.1
lr_scheduler:
  class: LinearWarmupCosine
  warmup_steps: 100
  eta_min: 1e-4
)",
          []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<GptText, GptTextData>>(); }};
}

}  // namespace levin::cli
