#include <cstdio>

#include <ATen/ops/ones.h>
#include <levin/levin.h>

// The smallest program that needs the library, LibTorch, and both at run time.
int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const levin::Batch batch{{"image", at::ones({2, 3})}};
    args.check_all_used();
    std::printf("sum %.0f\n", batch["image"].sum().item<double>());
  });
}
