#pragma once

#include <span>

#include <c10/core/Device.h>

#include "levin/kernels/images/image_resample_launch.h"

namespace levin::kernels {

using detail::JpegPlanesEntry;

/// RGB, or gray, of the planes that a JPEG decoder gives: chroma is brought to the size of luma by libjpeg's triangle
/// filter, and colors are converted in its whole numbers, so that the same planes give the same pixels. Gray is made
/// from the colors, not from the luma plane, since colors out of range are cut off first. One launch for all on CUDA.
/// Pointers are to memory of the device; the part of every entry is within its image.
void jpeg_colors(std::span<const JpegPlanesEntry> entries, c10::Device device);

namespace detail {
/// In jpeg_colors_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void jpeg_colors_cuda(std::span<const JpegPlanesEntry> entries, c10::Device device);
}  // namespace detail

}  // namespace levin::kernels
