// Recurrent modules, attention and transformers of torch/nn/modules.h.
#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {

namespace nn = torch::nn;

std::vector<NnRow> recurrent_rows() {
  std::vector<NnRow> rows;
  const std::vector<int64_t> sequence{16, 8, 32}, row{64, 32};
  const auto outputs = [](auto& it, const Tensors& x) -> Tensor { return std::get<0>(it->forward(x[0])); };
  const auto add = [&](const char* name, auto factory) {
    rows.push_back(module_row(name, {{sequence}}, factory, outputs));
  };
  add("RNN", [] { return nn::RNN(32, 32); });
  add("RNN relu two ways",
      [] { return nn::RNN(nn::RNNOptions(32, 32).nonlinearity(torch::kReLU).bidirectional(true).num_layers(2)); });
  add("LSTM", [] { return nn::LSTM(32, 32); });
  add("LSTM two ways dropout", [] {
    return nn::LSTM(nn::LSTMOptions(32, 32).bidirectional(true).num_layers(2).dropout(0.2).batch_first(true));
  });
  add("LSTM no bias", [] { return nn::LSTM(nn::LSTMOptions(32, 32).bias(false)); });
  add("LSTM projected", [] { return nn::LSTM(nn::LSTMOptions(32, 32).proj_size(16)); });
  add("GRU", [] { return nn::GRU(32, 32); });
  add("GRU layers", [] { return nn::GRU(nn::GRUOptions(32, 32).num_layers(2).bidirectional(true).batch_first(true)); });
  rows.push_back(module_row("RNNCell", row, [] { return nn::RNNCell(32, 32); }));
  rows.push_back(module_row("GRUCell", row, [] { return nn::GRUCell(32, 32); }));
  rows.push_back(module_row(
      "LSTMCell", {{row}}, [] { return nn::LSTMCell(32, 32); }, outputs));
  rows.push_back(module_row(
      "LSTM packed", {{sequence}}, [] { return nn::LSTM(32, 32); },
      [](auto& it, const Tensors& x) {
        namespace rnn = torch::nn::utils::rnn;
        const auto packed = rnn::pack_padded_sequence(x[0], torch::full({8}, 16, torch::kLong));
        return std::get<0>(it->forward_with_packed_input(packed)).data();
      }));
  rows.back().refused = "lengths";
  rows.push_back(module_row(
      "MultiheadAttention", {{sequence}}, [] { return nn::MultiheadAttention(32, 4); },
      [](auto& it, const Tensors& x) { return std::get<0>(it->forward(x[0], x[0], x[0])); }));
  rows.push_back(module_row(
      "MultiheadAttention masked dropout", {{sequence}, {{16, 16}}},
      [] {
        return nn::MultiheadAttention(
            nn::MultiheadAttentionOptions(32, 4).dropout(0.1).add_bias_kv(true).add_zero_attn(true));
      },
      [](auto& it, const Tensors& x) {
        return std::get<0>(it->forward(x[0], x[0], x[0], {}, /*need_weights=*/false, x[1]));
      }));
  rows.push_back(module_row("TransformerEncoderLayer", sequence, [] {
    return nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0.0));
  }));
  rows.push_back(module_row("TransformerEncoder", sequence, [] {
    return nn::TransformerEncoder(
        nn::TransformerEncoderLayer(
            nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).activation(torch::kGELU)),
        2);
  }));
  const auto with_memory = [](auto& it, const Tensors& x) { return it->forward(x[0], x[1]); };
  rows.push_back(module_row(
      "TransformerDecoderLayer", {{sequence}, {sequence}},
      [] { return nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(32, 4).dim_feedforward(64)); },
      with_memory));
  rows.push_back(module_row(
      "TransformerDecoder", {{sequence}, {sequence}},
      [] {
        return nn::TransformerDecoder(
            nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(32, 4).dim_feedforward(64)), 2);
      },
      with_memory));
  rows.push_back(module_row(
      "Transformer", {{sequence}, {sequence}},
      [] { return nn::Transformer(nn::TransformerOptions(32, 4, 1, 1).dim_feedforward(64)); }, with_memory));
  return rows;
}

}  // namespace levin::testing
