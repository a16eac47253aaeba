#include "levin/models/language/architecture.h"

namespace levin::models {

void read_experts(const ModelConfig& config, DecoderOptions& options, int64_t count, int64_t per_token,
                  double balance_loss) {
  auto& experts = options.experts;
  experts.count = config.count({"num_local_experts", "num_experts"}, kMostWidth, count);
  experts.per_token = config.count({"num_experts_per_tok"}, kMostWidth, per_token);
  if (experts.per_token > experts.count) config.fail("num_experts_per_tok", "is more than the number of experts");
  // transformers adds it only where it returns the logits of routers.
  if (config.flag("output_router_logits", false))
    options.balance_loss = config.number({"router_aux_loss_coef"}, balance_loss, 0, 1e9);
}

std::vector<WeightRule> with_experts(std::vector<WeightRule> rules, const std::string& module, const std::string& gate,
                                     const std::string& up, const std::string& down) {
  const std::string ours = "blocks.#.experts.", theirs = "layers.#." + module + ".";
  const auto stacked = [&](const char* name, const std::string& their_name) {
    rules.push_back({ours + name, {theirs + "experts.@." + their_name + ".weight"}, WeightLayout::kStacked});
  };
  rules.push_back({ours + "router", {theirs + "gate.weight"}});
  stacked("gate", gate);
  stacked("up", up);
  stacked("down", down);
  return rules;
}

LanguageArchitecture mixtral_architecture() {
  return {.model_type = "mixtral",
          .class_name = "Mixtral",
          .prefix = "model.",
          .rules = with_experts(llama_weights(), "block_sparse_moe", "w1", "w3", "w2"),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            if (!config.has("rms_norm_eps")) options.norm_eps = 1e-5;
            if (!config.has("rope_theta") && !config.object("rope_parameters").has("rope_theta") &&
                !config.object("rope_scaling").has("rope_theta"))
              options.rotary_base = 1e6;
            if (!config.is_null("sliding_window")) options.window = config.count({"sliding_window"}, kMostPositions, 0);
            if (config.number({"router_jitter_noise"}, 0, 0, 1) > 0)
              config.fail("router_jitter_noise", "is not supported");
            read_experts(config, options, 8, 2);
            return options;
          }};
}

}  // namespace levin::models
