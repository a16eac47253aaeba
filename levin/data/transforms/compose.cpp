#include "levin/data/transforms/compose.h"

#include <numeric>

#include <c10/util/Type.h>

#include "levin/core/error.h"

namespace levin {

std::string detail::step_name(const std::type_info& type) {
  auto name = c10::demangle(type.name());
  if (name.find_first_of("({") != std::string::npos) return "a function of the program";
  if (const auto colon = name.rfind("::"); colon != std::string::npos) name = name.substr(colon + 2);
  return name;
}

void detail::fail_unplanned(const std::string& step) {
  fail(concat("[transforms] ", step, " needs the pixels of an image and cannot be planned"));
}

}  // namespace levin

namespace levin::transforms {
namespace {

struct Steps {
  std::vector<Transform> steps;

  Tensor operator()(const Tensor& image, Random& random) const { return from(0, image, random); }
  Tensor decode(std::span<const std::byte> file, Random& random, const ImageOptions& options) const {
    return from(1, steps.front().decode(file, random, options), random);
  }
  std::string unplanned() const {
    for (const auto& step : steps)
      if (auto name = step.unplanned(); !name.empty()) return name;
    return {};
  }
  void plan(PixelPlan& plan, Random& random) const {
    for (const auto& step : steps) step.plan(plan, random);
  }
  Tensor from(size_t first, Tensor image, Random& random) const {
    for (size_t i = first; i < steps.size(); ++i) image = steps[i](image, random);
    return image;
  }
};

}  // namespace

Transform compose(std::vector<Transform> steps) {
  std::erase_if(steps, [](const Transform& step) { return step.empty(); });
  if (steps.empty()) return {};
  if (steps.size() == 1) return steps.front();
  return Steps{std::move(steps)};
}

Tensor RandomApply::operator()(const Tensor& image, Random& random) const {
  if (!random.chance(p)) return image;
  Tensor result = image;
  for (const auto& step : transforms) result = step(result, random);
  return result;
}

Tensor RandomChoice::operator()(const Tensor& image, Random& random) const {
  LEVIN_CHECK(!transforms.empty(), "[transforms.RandomChoice] has no transforms to choose from");
  if (p.empty()) return transforms[random.below(transforms.size())](image, random);
  LEVIN_CHECK(p.size() == transforms.size(), "[transforms.RandomChoice] ", p.size(), " weights for ", transforms.size(),
              " transforms");
  double rest = random.uniform() * std::accumulate(p.begin(), p.end(), 0.0);
  size_t chosen = 0;
  while (chosen + 1 < p.size() && rest >= p[chosen]) rest -= p[chosen++];
  return transforms[chosen](image, random);
}

}  // namespace levin::transforms
