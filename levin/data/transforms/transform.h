#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "levin/core/random.h"
#include "levin/io/images/image.h"

namespace levin {

/// What a step of a pipeline is: an image [C, H, W] (uint8 from a decoder, or float) to an image, with random numbers
/// of its own. It is called from many threads at once, so it must not change itself.
template <class T>
concept ImageStep = requires(const T& step, const Tensor& image, Random& random) {
  { step(image, random) } -> std::convertible_to<Tensor>;
};

/// A step that only looks at a part of the image first (RandomResizedCrop, CenterCrop, RandomCrop): a pipeline that
/// begins with one decodes that part alone. `after_crop` does the rest of the step.
template <class T>
concept CroppingStep = ImageStep<T> &&
    requires(const T& step, int64_t height, int64_t width, const Tensor& image, Random& random) {
  { step.crop(height, width, random) } -> std::convertible_to<std::optional<ImageRegion>>;
  { step.after_crop(image, random) } -> std::convertible_to<Tensor>;
};

namespace transforms {
class PixelPlan;
}  // namespace transforms

/// A step that can say what it does from the size of an image alone (crops, resizes, flips, normalize). A pipeline of
/// such steps may run on the device (LoaderOptions::decode). `unplanned()`, where there is one, names options with
/// which it cannot.
template <class T>
concept PlannedStep = ImageStep<T> && requires(const T& step, transforms::PixelPlan& plan, Random& random) {
  step.plan(plan, random);
};

namespace detail {
/// The name of a step for messages: "ColorJitter".
std::string step_name(const std::type_info& type);
[[noreturn]] void fail_unplanned(const std::string& step);
}  // namespace detail

/// One step or several, as a value: a small handle that copies share. An empty one changes nothing.
///
///     levin::Transform train = levin::transforms::compose({levin::transforms::RandomResizedCrop{.size = 224},
///                                                          levin::transforms::RandomHorizontalFlip{}});
class Transform {
 public:
  Transform() = default;
  template <ImageStep T>
  requires(!std::same_as<T, Transform>) Transform(T step) : step_(std::make_shared<Model<T>>(std::move(step))) {}

  Tensor operator()(const Tensor& image, Random& random) const { return step_ ? step_->run(image, random) : image; }

  /// Decodes an image file and transforms it: the same as `(*this)(decode_image(file), random)`, often with less work.
  Tensor decode(std::span<const std::byte> file, Random& random, const ImageOptions& options = {}) const {
    return step_ ? step_->decode(file, random, options) : decode_image(file, options);
  }

  /// The first step that needs the pixels, by name; empty when all of them can be planned.
  std::string unplanned() const { return step_ ? step_->unplanned() : std::string(); }
  /// What the steps make of an image of the plan's size, with the random numbers that they would draw for its pixels.
  void plan(transforms::PixelPlan& plan, Random& random) const {
    if (step_) step_->plan(plan, random);
  }

  bool empty() const { return !step_; }

 private:
  struct Step {
    virtual ~Step() = default;
    virtual Tensor run(const Tensor& image, Random& random) const = 0;
    virtual Tensor decode(std::span<const std::byte> file, Random& random, const ImageOptions& options) const = 0;
    virtual std::string unplanned() const = 0;
    virtual void plan(transforms::PixelPlan& plan, Random& random) const = 0;
  };
  template <class T>
  struct Model final : Step {
    explicit Model(T value) : step(std::move(value)) {}
    Tensor run(const Tensor& image, Random& random) const override { return step(image, random); }
    Tensor decode(std::span<const std::byte> file, Random& random, const ImageOptions& options) const override {
      if constexpr (requires { step.decode(file, random, options); }) {
        return step.decode(file, random, options);
      } else {
        if constexpr (CroppingStep<T>) {
          if (!options.region && !options.apply_exif) {
            const ImageInfo info = image_info(file);
            if (const std::optional<ImageRegion> region = step.crop(info.height, info.width, random)) {
              ImageOptions part = options;
              part.region = region;
              return step.after_crop(decode_image(file, part), random);
            }
            return step.after_crop(decode_image(file, options), random);
          }
        }
        return step(decode_image(file, options), random);
      }
    }
    std::string unplanned() const override {
      if constexpr (!PlannedStep<T>)
        return detail::step_name(typeid(T));
      else if constexpr (requires { step.unplanned(); })
        return step.unplanned();
      else
        return {};
    }
    void plan(transforms::PixelPlan& plan, Random& random) const override {
      if constexpr (PlannedStep<T>)
        step.plan(plan, random);
      else
        detail::fail_unplanned(unplanned());
    }
    T step;
  };
  std::shared_ptr<const Step> step_;
};

namespace transforms {

/// One after the other; the first decides what is decoded.
Transform compose(std::vector<Transform> steps);

}  // namespace transforms

}  // namespace levin
