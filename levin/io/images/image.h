#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "levin/io/images/image_options.h"

namespace levin {

using at::Tensor;

/// Reads the head only. Bytes that no codec knows, or a head that is cut off, are an Error; the name of the
/// file is for the caller to add (see read_image).
ImageInfo image_info(std::span<const std::byte> file);

/// What decode_image gives for a file of this head, without decoding it. An Error when the options do not fit the
/// image: a region beyond it, more pixels than allowed.
ImageShape decoded_shape(const ImageInfo& info, const ImageOptions& options = {});

/// uint8 [C, H, W], whose memory is [H, W, C] (a channels-last view: what decoders write and what convolutions like).
/// What the bytes are is told by the bytes, never by a name. May be called from many threads at once.
Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options = {});

/// The same into memory that is already there: height * width * channels bytes, of the size that image_info, the region
/// and the mode give (decoded_shape). The Error says so when it is of another size.
void decode_image_into(std::span<const std::byte> file, std::span<uint8_t> pixels, const ImageOptions& options = {});

/// Reads and decodes a file; every Error names it.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// The bytes of a file with these pixels: uint8 [C, H, W] of 1, 2 (PNG), 3 or 4 (PNG) channels, in any memory order.
std::string encode_image(const Tensor& pixels, const EncodeOptions& options = {});
/// Encodes by the name of the file (.png, .jpg, .jpeg) and writes it, whole or not at all.
void write_image(const std::filesystem::path& path, const Tensor& pixels, EncodeOptions options = {});

}  // namespace levin
