#include "levin/program/command.h"

namespace levin::cli {

// Each is defined in a file of commands/.
Command fit_command(), validate_command(), test_command(), predict_command(), recipes_command(), run_command(),
    pack_command(), data_command(), memory_command(), pipeline_command(), plan_command(), new_command(),
    inspect_command(), convert_command(), score_command(), generate_command(), serve_command(), tokenize_command(),
    report_command(), completion_command();

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      fit_command(),      validate_command(), test_command(),     predict_command(), recipes_command(),
      run_command(),      pack_command(),     data_command(),     memory_command(),  pipeline_command(),
      plan_command(),     new_command(),      inspect_command(),  convert_command(), score_command(),
      generate_command(), serve_command(),    tokenize_command(), report_command(),  completion_command(),
  };
  return all;
}

}  // namespace levin::cli
