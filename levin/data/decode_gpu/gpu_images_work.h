#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/batch.h"
#include "levin/data/batch_pipe.h"
#include "levin/data/decode_gpu/encoded_image.h"
#include "levin/data/decode_gpu/jpeg_decoder.h"

namespace levin::detail {

/// A batch of images whose files threads read and whose pixels the device makes. Files that the decoder does not take
/// are decoded and transformed by the threads; the batch, its order and its errors are those of RowsWork.
class GpuImagesWork final : public BatchOfWork<Batch> {
 public:
  /// A sample by its index; without a decoder it is decoded here.
  using Make = std::function<EncodedImage(int64_t index, Random&, const GpuJpegDecoder*)>;
  /// `cpu_share`: LoaderOptions::decode_on_cpu.
  GpuImagesWork(BatchId id, std::vector<int64_t> indices, std::shared_ptr<BadSamples> bad,
                std::shared_ptr<BatchMemory> memory, std::shared_ptr<GpuJpegDecoder> decoder, Make make,
                double cpu_share = 0);

 protected:
  void make_sample(int64_t row) override;
  void prepare() override;
  void replace_first(int64_t index) override { indices_[0] = index; }
  std::string sample_name(int64_t row) const override;
  Batch collate() override;

 private:
  std::vector<int64_t> good_rows() const;
  /// Whether the row is one of those that the CPU decodes, which are spread evenly.
  bool is_for_cpu(int64_t row) const;
  bool is_encoded(int64_t row) const { return !made_[static_cast<size_t>(row)].file.empty(); }
  /// Whether all good samples will be of one shape and type.
  bool goes_together(const std::vector<int64_t>& rows) const;
  /// The images of these rows on the device; false when a file is broken.
  bool decode(const std::vector<int64_t>& rows);
  void add_pixels(const std::vector<int64_t>& rows);

  std::vector<int64_t> indices_;
  std::vector<EncodedImage> made_;
  std::shared_ptr<BatchMemory> memory_;
  std::shared_ptr<GpuJpegDecoder> decoder_;
  Make make_;
  double cpu_share_;
  bool on_cpu_ = false;  // the device has failed: samples are made without it
  Tensor images_;        // of all good rows, unless the CPU made all of them
};

}  // namespace levin::detail
