// A rank that does what its arguments say. It links nothing of Levin, so that it starts at once.
#include <vector>

#include "probe_actions.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  levin::testing::act_all(words, [](const std::string&) { return false; });
}
