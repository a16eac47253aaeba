#!/usr/bin/env python3
"""What torchvision makes of a few small images: tests/data/fixtures/transforms.safetensors.

    python make_transform_fixtures.py        (torchvision 0.26, Pillow 13, safetensors)

A tensor is named <input>/<operation>/<numbers>; the inputs are named <input>. Images of bytes go through torchvision as PIL
images, those named float* as tensors. Factors of colours are sums of few powers of two: their products are exact, so that
it does not matter whether Pillow was compiled to join a product and a sum.
"""
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms.v2 import functional as F

rng = np.random.default_rng(7)


def picture(height, width, channels):
    """Smooth colours, an edge and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [110 + 90 * np.sin(x / (3 + c) + c) * np.cos(y / (5 - c)) + 40 * ((x + y) % 11 > 5) for c in range(channels)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 12, (height, width, channels)), 0, 255).astype(np.uint8)


arrays = {"rgb": picture(21, 30, 3), "grey": picture(18, 23, 1), "large": picture(75, 101, 3), "rgba": picture(12, 17, 4),
          "colors": rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)}
inputs = {name: Image.fromarray(array[..., 0] if array.shape[2] == 1 else array) for name, array in arrays.items()}
inputs["float"] = torch.from_numpy(picture(11, 14, 3)).permute(2, 0, 1).contiguous().float().div(255)
modes = [Mode.NEAREST, Mode.NEAREST_EXACT, Mode.BILINEAR, Mode.BICUBIC, Mode.BOX, Mode.HAMMING, Mode.LANCZOS]
paddings = ["constant", "edge", "reflect", "symmetric"]


def perspective(image, *numbers):
    width, height = (image.shape[-1], image.shape[-2]) if isinstance(image, torch.Tensor) else image.size
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    end = [list(map(int, numbers[i : i + 2])) for i in range(0, 8, 2)]
    return F.perspective(image, start, end, interpolation=modes[numbers[8]], fill=numbers[9])


def normalize(image):
    scaled = F.to_dtype(F.to_image(image), torch.float32, scale=True)
    channels = scaled.shape[0]
    return F.normalize(scaled, [0.485, 0.456, 0.406][:channels], [0.229, 0.224, 0.225][:channels])


operations = {
    "resize": lambda i, mode, h, w: F.resize(i, [h, w], interpolation=modes[mode]),
    "resize_plain": lambda i, mode, h, w: F.resize(i, [h, w], interpolation=modes[mode], antialias=False),
    "crop": lambda i, t, l, h, w: F.crop(i, t, l, h, w),
    "center_crop": lambda i, h, w: F.center_crop(i, [h, w]),
    "pad": lambda i, l, t, r, b, mode, fill: F.pad(i, [l, t, r, b], fill=fill, padding_mode=paddings[mode]),
    "hflip": F.horizontal_flip,
    "vflip": F.vertical_flip,
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "hue": F.adjust_hue,
    "sharpness": F.adjust_sharpness,
    "grayscale": lambda i, n: F.rgb_to_grayscale(i, num_output_channels=n),
    "invert": F.invert,
    "posterize": lambda i, bits: F.posterize(i, bits),
    "solarize": F.solarize,
    "autocontrast": F.autocontrast,
    "equalize": F.equalize,
    "blur": lambda i, kx, ky, sx, sy: F.gaussian_blur(i, [kx, ky], [sx, sy]),
    "affine": lambda i, angle, tx, ty, scale, sx, sy, mode, fill, *c: F.affine(
        i, angle=angle, translate=[tx, ty], scale=scale, shear=[sx, sy], interpolation=modes[mode], fill=fill, center=list(c) or None),
    "rotate": lambda i, angle, mode, expand, fill, *c: F.rotate(
        i, angle, interpolation=modes[mode], expand=bool(expand), fill=fill, center=list(c) or None),
    "perspective": perspective,
    "normalize": lambda i: normalize(i),
    "to_float": lambda i: F.to_dtype(F.to_image(i), torch.float32, scale=True),
    "to_bytes": lambda i: F.to_dtype(i, torch.uint8, scale=True),
}

shear = [math.degrees(math.atan(m)) for m in (0.27, -0.6)]
cases = [
    *[("rgb", "resize", m, h, w) for m in range(7) for h, w in ((9, 13), (37, 41), (21, 12), (8, 30))],
    *[("large", "resize", m, 16, 24) for m in range(2, 7)], ("large", "resize", 0, 19, 23), ("large", "resize", 2, 1, 1),
    *[("grey", "resize", m, 11, 29) for m in range(7)],
    *[("rgba", "resize", m, h, w) for m, h, w in ((0, 7, 9), (2, 7, 9), (3, 20, 11), (6, 5, 30))], ("rgb", "resize", 2, 12, 25), ("rgb", "resize", 2, 12, 26),
    ("rgba", "affine", 20, 1, 0, 1, 0, 0, 2, 60), ("rgba", "rotate", 20, 0, 0, 60), ("rgba", "contrast", 1.5), ("rgba", "brightness", 0.5), ("rgba", "hflip"),
    ("rgb", "crop", 3, 4, 10, 12), ("rgb", "crop", -2, 5, 30, 40), ("rgb", "crop", 10, -3, 5, 8),
    ("rgb", "center_crop", 10, 11), ("rgb", "center_crop", 25, 11), ("rgb", "center_crop", 24, 37),
    *[("rgb", "pad", 2, 3, 4, 5, m, 0) for m in range(4)], ("rgb", "pad", 1, 0, 0, 2, 0, 77), ("grey", "pad", 3, 3, 3, 3, 0, 9),
    ("rgb", "pad", -2, 3, -1, 0, 2, 0), ("rgb", "pad", 4, -3, 2, -1, 0, 5),
    *[(i, op) for i in ("rgb", "grey", "float") for op in ("hflip", "vflip", "invert", "autocontrast", "equalize")],
    *[(i, op, f) for i in ("rgb", "grey", "float") for op in ("brightness", "contrast", "saturation", "sharpness") for f in (0, 0.375, 1.75)],
    ("colors", "saturation", 1.375), ("colors", "contrast", 0.625), ("colors", "sharpness", 3.5), ("colors", "autocontrast"),
    *[("colors", "hue", f) for f in (-0.5, -0.213, 0, 0.1, 0.4)], ("rgb", "hue", 0.3), ("grey", "hue", 0.2), ("float", "hue", -0.27),
    ("rgb", "grayscale", 1), ("rgb", "grayscale", 3), ("float", "grayscale", 1), ("float", "grayscale", 3), ("colors", "grayscale", 1),
    *[(i, "posterize", b) for i in ("rgb", "float") for b in (1, 4)], ("rgb", "solarize", 100.5), ("grey", "solarize", 0), ("float", "solarize", 0.4),
    *[(i, "blur", *k) for i in ("rgb", "grey", "float") for k in ((3, 3, 0.7, 0.7), (7, 5, 1.3, 2.0))],
    *[(i, "affine", *a) for i in ("rgb",) for m in (0, 2, 3) for a in ((17, 3, -2, 1.3, 8, -5, m, 31), (-100, 0, 0, 0.71, 0, 0, m, 0, 3, 5), (0, 4, -3, 1, 0, 0, m, 8))],
    ("rgb", "affine", 0, 0, 0, 1, shear[0], 0, 0, 0, 0, 0), ("rgb", "affine", 0, 0, 0, 1, 0, shear[1], 0, 0, 0, 0), ("grey", "affine", 33, 1, 1, 1.1, 3, 3, 2, 200),
    *[("float", "affine", 17, 3, -2, 1.3, 8, -5, m, 0.25) for m in (0, 2)],
    *[("rgb", "rotate", a, m, e, 12) for a, m, e in ((30, 0, 0), (30, 0, 1), (-71.5, 2, 0), (-71.5, 3, 1), (90, 0, 0), (90, 2, 1), (270, 0, 1), (180, 0, 0))],
    ("rgb", "rotate", 45, 0, 0, 0, 4, 9), ("grey", "rotate", 12, 2, 1, 255), ("float", "rotate", 30, 2, 0, 0.5), ("float", "rotate", 30, 0, 1, 0), ("float", "rotate", 90, 0, 1, 0),
    *[("rgb", "perspective", 2, 1, 26, 3, 28, 19, 1, 15, m, 40) for m in (0, 2, 3)], ("float", "perspective", 1, 1, 12, 2, 13, 9, 0, 8, 2, 0),
    ("rgb", "normalize"), ("grey", "normalize"), ("float", "normalize"), ("rgb", "to_float"), ("float", "to_bytes"),
    *[("float", "resize", m, h, w) for m in (0, 1, 2, 3) for h, w in ((5, 8), (17, 19))], *[("float", "resize_plain", m, 6, 19) for m in (2, 3)],
]


def as_tensor(image):
    tensor = image if isinstance(image, torch.Tensor) else F.pil_to_tensor(image)
    return tensor.contiguous().clone()


tensors = {name: as_tensor(image) for name, image in inputs.items()}
for name, operation, *numbers in cases:
    key = f"{name}/{operation}/" + ",".join(repr(float(n)) for n in numbers)
    assert key not in tensors, key
    tensors[key] = as_tensor(operations[operation](inputs[name], *numbers))
path = Path(__file__).parent / "fixtures" / "transforms.safetensors"
save_file(tensors, path)
print(f"{len(cases)} cases, {path.stat().st_size} bytes")
