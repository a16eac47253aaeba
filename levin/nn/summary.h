#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

struct SummaryOptions {
  /// How deep modules are listed: 1 the children of the model, 0 the footer alone, -1 everything.
  int64_t max_depth = 1;
  /// Runs the model on a sample, so that the shapes that go into and come out of its units can be shown. Runs without
  /// gradients, in evaluation mode; the random generators of the CPU are put back.
  std::function<void()> sample = {};
};

/// A module in a summary. Tied parameters count in the first module that has them.
struct SummaryRow {
  std::string name;
  std::string type;
  int64_t params = 0;
  int64_t trainable = 0;
  int64_t bytes = 0;
  /// Of the parameters: "Float", or "mixed", or empty.
  std::string dtype;
  /// Shapes of the module's own parameters.
  std::string shapes;
  bool training = true;
  std::string in_sizes, out_sizes;
};

struct Summary {
  std::vector<SummaryRow> rows;
  int64_t total = 0;
  int64_t trainable = 0;
  int64_t bytes = 0;
  int64_t train_modules = 0;
  int64_t eval_modules = 0;
  bool has_sizes = false;

  /// The table, with a footer, for people.
  std::string text() const;
};

///     std::cout << levin::summarize(*model, {.max_depth = 2, .sample = [&] { model(images); }}).text();
Summary summarize(torch::nn::Module& model, const SummaryOptions& options = {});

}  // namespace levin
