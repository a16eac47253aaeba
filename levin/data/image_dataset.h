#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/batch.h"
#include "levin/core/random.h"
#include "levin/data/batch_memory.h"
#include "levin/data/decode_gpu/encoded_image.h"
#include "levin/data/decode_gpu/jpeg_decoder.h"
#include "levin/data/transforms/transform.h"
#include "levin/io/images/image.h"
#include "levin/io/records/records.h"

namespace levin {

struct ImageDatasetOptions {
  /// What becomes of each image; by default nothing.
  Transform transform = {};
  /// The channels of the images.
  ImageMode mode = ImageMode::kRgb;
  /// Which part of a data set that has several: "train" or "test".
  std::string split = "train";
  /// The format; by default what the path looks like (see open_records).
  std::string format = "auto";
  /// Turn photographs as their EXIF entry says.
  bool apply_exif = false;
};

/// Images and their classes from a folder, a packed file or a data set in its own format, decoded when they are asked
/// for. A small handle: copies share the open files.
///
///     levin::ImageDataset data("imagenet/train", {.transform = augment});
///     auto loader = levin::make_loader(data, {.batch_size = 64, .shuffle = true});
class ImageDataset {
 public:
  explicit ImageDataset(const std::string& path, ImageDatasetOptions options = {});
  /// Of records that are open already.
  explicit ImageDataset(std::shared_ptr<const RecordReader> records, ImageDatasetOptions options = {});

  int64_t size() const { return records_->size(); }
  /// "image", uint8 [C, H, W] (in the memory order of a decoder, [H, W, C]) or what the transform makes of it, and
  /// "label", int64 [] (when there is one). An Error names the file or the place in it.
  Batch get(int64_t index, Random& random) const;
  /// The same, decoded where the loader wants it.
  Batch get(int64_t index, Random& random, SamplePlace& place) const;

  /// The same with the image undecoded, if the decoder takes it and the transform can be planned; with the same random
  /// numbers. Without a decoder it is decoded here.
  detail::EncodedImage get_encoded(int64_t index, Random& random, const detail::GpuJpegDecoder* decoder) const;
  /// Why no image can be left undecoded: its mode, or a step of its transform; empty when some can.
  std::string why_not_gpu() const;

  /// Names of the classes, by label; empty when they are not known.
  std::vector<std::string> classes() const { return records_->classes(); }
  const RecordReader& records() const { return *records_; }
  const ImageDatasetOptions& options() const { return options_; }

 private:
  Tensor decode(const Record& record, Random& random, SamplePlace& place) const;
  /// Whether the image is left undecoded in `sample`.
  bool plan(Record& record, Random& random, const detail::GpuJpegDecoder& decoder, detail::EncodedImage& sample) const;
  /// Reads a record and calls f with it; an Error of either names the sample.
  template <class F>
  auto with_record(int64_t index, F&& f) const;

  std::shared_ptr<const RecordReader> records_;
  ImageDatasetOptions options_;
};

namespace detail {
/// uint8 [C, H, W] with the channels of a mode, by Pillow's rules; itself when it has them.
Tensor to_mode(const Tensor& image, ImageMode mode);
}  // namespace detail

}  // namespace levin
