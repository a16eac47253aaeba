"""Writes tests/io/fixtures/images: small PNG and JPEG files of every kind, and what Pillow makes of them; and
tests/io/fixtures/webp, the same of WebP files.

    python make_image_fixtures.py [images] [webp]

Needs Pillow, numpy, safetensors and, for images, cjpeg (libjpeg-turbo-progs). PNG files are put together here, since Pillow writes few of
the kinds. `expected.safetensors` has `NAME/L`, `NAME/RGB`, `NAME/RGBA` as uint8 [H, W, C]. Where Pillow's conversion is not
that of the PNG specification (docs/io.md) the numbers follow the specification, computed below.
"""
import io
import pathlib
import random
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
from PIL import Image, ImageFile, ImageOps
from safetensors.numpy import save_file

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
HERE = FIXTURES / "images"
MODES = ("L", "RGB", "RGBA")
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
chance = random.Random(7)
expected = {}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(row, above, step, kind):
    out = bytearray([kind])
    for i, value in enumerate(row):
        a = row[i - step] if i >= step else 0
        b = above[i]
        c = above[i - step] if i >= step else 0
        p = a + b - c
        nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        out.append((value - [0, a, b, (a + b) // 2, nearest][kind]) & 255)
    return bytes(out)


def packed(samples, depth):
    """Rows of samples as bytes."""
    if depth == 16:
        return [struct.pack(f">{len(row)}H", *row) for row in samples]
    rows = []
    for row in samples:
        bits = "".join(format(v, f"0{depth}b") for v in row)
        bits += "0" * (-len(bits) % 8)
        rows.append(bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8)))
    return rows


def filtered_rows(samples, depth, per_pixel):
    rows = packed(samples, depth)
    above = bytes(len(rows[0]))
    out = b""
    for y, row in enumerate(rows):
        out += filtered(row, above, max(1, per_pixel * depth // 8), y % 5 if y < 5 else chance.randrange(5))
        above = row
    return out


def png(values, depth, color, interlaced=False, extra=b"", pieces=1, after=b""):
    """values: [H, W, samples] of whole numbers."""
    height, width, per_pixel = values.shape
    if interlaced:
        raw = b""
        for x, y, dx, dy in PASSES:
            part = values[y::dy, x::dx]
            if part.size:
                raw += filtered_rows(part.reshape(part.shape[0], -1).tolist(), depth, per_pixel)
    else:
        raw = filtered_rows(values.reshape(height, -1).tolist(), depth, per_pixel)
    data = zlib.compress(raw, 9)
    size = -(-len(data) // pieces)
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra +
            b"".join(chunk(b"IDAT", data[i:i + size]) for i in range(0, len(data), size)) + after + chunk(b"IEND", b""))


def samples(height, width, depth, color):
    """Slopes with a little noise; indexes for palettes."""
    top = 2**depth - 1
    y, x = np.mgrid[0:height, 0:width]
    planes = [((x * (k + 2) * top // 20 + y * (3 - k % 3) * top // 30 + (x * y * 7 + k) % 3) % (top + 1))
              for k in range(SAMPLES[color])]
    return np.stack(planes, -1).astype(np.int64)


def pixels_of(content, mode, **how):
    image = Image.open(io.BytesIO(content))
    if how.get("size"):
        image.draft(None, how["size"])
    if how.get("upright"):
        image = ImageOps.exif_transpose(image)
    return np.array(image.convert(mode)).reshape(image.size[1], image.size[0], -1)


def keep(name, content, numbers=None, modes=MODES, **how):
    (HERE / name).write_bytes(content)
    for mode in modes:
        array = numbers[mode] if numbers else pixels_of(content, mode, **how)
        expected[f"{name}/{mode}"] = np.ascontiguousarray(array, dtype=np.uint8)


def by_specification(grey8, alpha):
    """What grey samples and an alpha plane are in each mode."""
    rgb = np.repeat(grey8, 3, -1)
    return {"L": grey8, "RGB": rgb, "RGBA": np.concatenate([rgb, alpha], -1)}


def make_png():
    for color, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
        for depth in depths:
            for interlaced in (False, True):
                values = samples(11, 13, depth, color)
                extra = b""
                if color == 3:
                    count = min(2**depth, 200)
                    values %= count
                    extra = chunk(b"PLTE", bytes(chance.randrange(256) for _ in range(3 * count)))
                numbers = None
                if color == 0 and depth == 16:
                    numbers = by_specification(values >> 8, np.full_like(values, 255))
                name = f"color{color}_{depth}{'_interlaced' if interlaced else ''}.png"
                keep(name, png(values, depth, color, interlaced, extra), numbers)
    # One transparent colour, and palettes with alpha.
    for depth in (1, 2, 4, 8, 16):
        values = samples(6, 7, depth, 0)
        key = int(values[2, 3, 0])
        eight = values >> 8 if depth == 16 else values * 255 // (2**depth - 1)
        numbers = by_specification(eight, np.where(values == key, 0, 255))
        keep(f"key0_{depth}.png", png(values, depth, 0, extra=chunk(b"tRNS", struct.pack(">H", key))), numbers)
    for depth in (8, 16):
        values = samples(6, 7, depth, 2)
        values[4, 4] = values[2, 3]
        values[5, 5] = values[2, 3] ^ np.array([0, 0, 1])
        key = values[2, 3].tolist()
        rgb = values >> (depth - 8)
        alpha = np.where((values == values[2, 3]).all(-1, keepdims=True), 0, 255)
        content = png(values, depth, 2, extra=chunk(b"tRNS", struct.pack(">3H", *key)))
        numbers = {"L": pixels_of(content, "L"), "RGB": rgb, "RGBA": np.concatenate([rgb, alpha], -1)}
        keep(f"key2_{depth}.png", content, numbers)
    palette = chunk(b"PLTE", bytes(chance.randrange(256) for _ in range(48)))
    keep("alpha3_4.png", png(samples(6, 7, 4, 3), 4, 3, extra=palette + chunk(b"tRNS", bytes([0, 80, 160, 255, 7]))))
    keep("alpha3_8.png", png(samples(6, 7, 8, 3) % 16, 8, 3, True, palette + chunk(b"tRNS", bytes(range(0, 160, 10)))))
    # An index beyond the palette is black.
    keep("short_palette.png", png(samples(6, 7, 4, 3), 4, 3, extra=chunk(b"PLTE", bytes(range(100, 130)))))
    # Interlaced images some of whose passes have no pixels.
    for height, width in ((1, 1), (1, 3), (5, 1), (3, 3)):
        keep(f"interlaced_{height}x{width}.png", png(samples(height, width, 8, 2), 8, 2, True))
    # Text, profiles and what nobody knows are passed over; data in many pieces are put together.
    bomb = zlib.compress(bytes(2_000_000), 9)
    extras = (chunk(b"tEXt", b"Comment\0hello") + chunk(b"zTXt", b"Bomb\0\0" + bomb) + chunk(b"iCCP", b"p\0\0" + bomb) +
              chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"teSt", b"?" * 9))
    plain = png(samples(20, 20, 8, 2), 8, 2)  # Pillow refuses the bombs
    keep("extras.png", png(samples(20, 20, 8, 2), 8, 2, extra=extras, pieces=7, after=chunk(b"tIME", bytes(7))),
         {mode: pixels_of(plain, mode) for mode in MODES})
    exif = Image.Exif()
    exif[0x0112] = 6
    content = png(samples(5, 9, 8, 2), 8, 2, extra=chunk(b"eXIf", exif.tobytes()[6:]))
    keep("turned_6.png", content, upright=True)


def photo(height, width):
    noise = np.random.default_rng(3)
    small = Image.fromarray(noise.integers(0, 255, (height // 7 + 2, width // 7 + 2, 3)).astype(np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    return Image.fromarray((smooth + noise.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8))


def saved(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def cjpeg(image, *flags):
    out = io.BytesIO()
    image.save(out, "PPM")
    return subprocess.run(["cjpeg", *flags], input=out.getvalue(), capture_output=True, check=True).stdout


def make_jpeg():
    image = photo(45, 59)
    for name, sample in {"444": "1x1", "422": "2x1", "420": "2x2", "411": "4x1", "440": "1x2", "410": "4x2"}.items():
        for kind in ("baseline", "progressive"):
            flags = ["-quality", "85", "-sample", sample] + (["-progressive"] if kind == "progressive" else [])
            keep(f"{kind}_{name}.jpg", cjpeg(image, *flags), modes=("RGB",))
    keep("grey.jpg", saved(image.convert("L"), quality=80))
    keep("grey_progressive.jpg", saved(image.convert("L"), quality=80, progressive=True), modes=("RGB",))
    keep("modes_420.jpg", saved(image.crop((0, 0, 30, 20)), quality=80))
    keep("restart.jpg", saved(image, quality=80, restart_marker_blocks=3), modes=("RGB",))
    keep("arithmetic.jpg", cjpeg(image, "-arithmetic", "-quality", "70"), modes=("RGB",))
    keep("adobe_rgb.jpg", saved(image, quality=80, keep_rgb=True, subsampling=0), modes=("RGB",))
    cmyk = Image.merge("CMYK", [*image.crop((0, 0, 30, 20)).split(), image.convert("L").crop((9, 9, 39, 29))])
    content = saved(cmyk, quality=85)
    keep("cmyk.jpg", content)
    adobe = content.index(b"Adobe")
    ycck = bytearray(content)
    ycck[adobe + 11] = 2  # the transform: what was CMYK is read as YCCK
    keep("ycck.jpg", bytes(ycck))
    keep("trailing.jpg", saved(image, quality=70) + b"\0\xff\xd8 and more", modes=("RGB",))
    keep("tiny.jpg", saved(photo(9, 9).crop((0, 0, 1, 1))), modes=("RGB",))
    # Every orientation, big and little endian.
    for turn in range(1, 9):
        exif = Image.Exif()
        exif.endian = "<" if turn % 2 else ">"
        exif[0x0112] = turn
        exif[0x010F] = "a maker"
        keep(f"turned_{turn}.jpg", saved(photo(13, 22), quality=75, exif=exif.tobytes()), modes=("RGB",), upright=True)
    # Scaled while it is decoded, as draft() does.
    large = photo(201, 310)
    for kind, options in {"420": {}, "444": {"subsampling": 0}, "progressive": {"progressive": True}}.items():
        content = saved(large, quality=50, **options)
        (HERE / f"large_{kind}.jpg").write_bytes(content)
        for least in (100, 50, 25):
            array = pixels_of(content, "RGB", size=(least, least))
            expected[f"large_{kind}.jpg/{least}"] = array[-40:, -30:].copy()
    # The rows that are there of files that end early.
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    for name in ("baseline_420", "progressive_420"):
        content = (HERE / f"{name}.jpg").read_bytes()
        expected[f"{name}.jpg/cut"] = pixels_of(content[:len(content) // 2], "RGB")


def webp(image, **options):
    out = io.BytesIO()
    image.save(out, "WEBP", **options)
    return out.getvalue()


def make_webp():
    image = photo(45, 59)
    alpha = Image.fromarray(np.add.outer(np.arange(45) * 3, np.arange(59) * 2).astype(np.uint8))
    see_through = image.copy()
    see_through.putalpha(alpha)
    # Colours under an alpha of 0 are kept: "exact".
    keep("lossless.webp", webp(image, lossless=True), {"RGB": np.array(image)}, modes=("RGB",))
    keep("lossless_alpha.webp", webp(see_through, lossless=True, exact=True))
    keep("lossy.webp", webp(image, quality=60))
    keep("lossy_alpha.webp", webp(see_through, quality=60, exact=True))
    keep("odd.webp", webp(image.crop((0, 0, 17, 13)), quality=90))
    keep("tiny.webp", webp(image.crop((0, 0, 1, 1)), lossless=True))
    keep("palette.webp", webp(image.quantize(4).convert("RGB"), lossless=True))
    for turn in (3, 6):
        exif = Image.Exif()
        exif[0x0112] = turn
        keep(f"turned_{turn}.webp", webp(photo(13, 22), lossless=True, exif=exif.tobytes()), upright=True)
    frames = [image.crop((x, 0, x + 9, 9)) for x in (0, 9)]
    (HERE / "animation.webp").write_bytes(webp(frames[0], save_all=True, append_images=frames[1:], duration=50))


def write(folder, *makers):
    global HERE
    HERE = FIXTURES / folder
    HERE.mkdir(parents=True, exist_ok=True)
    for path in HERE.iterdir():
        path.unlink()
    expected.clear()
    for make in makers:
        make()
    save_file(expected, HERE / "expected.safetensors")
    total = sum(path.stat().st_size for path in HERE.iterdir())
    print(f"{folder}: {len(list(HERE.iterdir()))} files, {total} bytes")


def main():
    warnings.simplefilter("ignore")
    wanted = sys.argv[1:] or ["images", "webp"]
    if "images" in wanted:
        write("images", make_png, make_jpeg)
    if "webp" in wanted:
        write("webp", make_webp)


if __name__ == "__main__":
    main()
