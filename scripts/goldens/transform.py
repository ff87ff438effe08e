#!/usr/bin/env python3
"""Goldens of decode and transform: small images of every JPEG, PNG and WebP kind, and what Pillow makes of them.

Writes tests/golden/transform/: the images and expected.json, with SHA-256 digests of the RGB bytes (equality is expected)
and a few raw pixels that show where a difference comes from.
    .venv-goldens/bin/python scripts/goldens/transform.py
"""
import hashlib
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps, features
from skimage import data

OUT = Path(__file__).resolve().parents[2] / "tests/golden/transform"
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
RESOLUTIONS = (64, 96, 256, 512)


def photo(source, left, top, width, height):
    return Image.fromarray(source[top:top + height, left:left + width])


def save(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def chunk(name, payload):
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def write_png(pixels, color, depth, interlaced=False, extra=b""):
    """PNG kinds that Pillow cannot write; `pixels` is (h, w, samples), 8 or 16 bit."""
    height, width = pixels.shape[:2]
    raw = pixels.astype(">u2" if depth == 16 else np.uint8)
    passes = [(0, 0, 1, 1)] if not interlaced else [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                                                     (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = b"".join(b"\0" + row.tobytes() for x, y, dx, dy in passes for row in raw[y::dy, x::dx] if row.size)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def make_exif(orientation, order="<", type="H"):
    """EXIF with one entry: a TIFF file of either byte order, the value of one of TIFF's types of whole numbers."""
    tiff_type = {"B": 1, "H": 3, "L": 4, "b": 6, "h": 8, "l": 9}[type]
    tiff = struct.pack(order + "2sHIHHHI", b"II" if order == "<" else b"MM", 42, 8, 1, 0x0112, tiff_type, 1)
    return tiff + struct.pack(order + type, orientation).ljust(4, b"\0") + struct.pack(order + "I", 0)


def make_oriented():
    """One small image under every orientation, in every container."""
    image = photo(data.coffee(), 210, 90, 37, 26)
    in_jpeg = lambda tiff: save(image, "JPEG", quality=85, subsampling="4:2:0", exif=b"Exif\0\0" + tiff)
    files = {f"oriented_{n}.jpg": in_jpeg(make_exif(n)) for n in range(1, 9)}
    files["oriented_none.jpg"] = in_jpeg(make_exif(0))
    files["oriented_beyond.jpg"] = in_jpeg(make_exif(9))
    files["oriented_big_endian.jpg"] = in_jpeg(make_exif(5, ">"))
    files["oriented_long.jpg"] = in_jpeg(make_exif(8, ">", "L"))
    files["oriented_byte.jpg"] = in_jpeg(make_exif(6, type="B"))
    files["oriented_signed.jpg"] = in_jpeg(make_exif(6, type="h"))
    files["oriented_signed_long.jpg"] = in_jpeg(make_exif(5, ">", "l"))
    files["oriented.png"] = save(image, "PNG", exif=make_exif(6))
    files["oriented_prefixed.png"] = write_png(np.asarray(image), 2, 8, extra=chunk(b"eXIf", b"Exif\0\0" + make_exif(8)))
    files["oriented_prefixed.webp"] = save(image, "WEBP", quality=80, exif=b"Exif\0\0" + make_exif(7))
    files["oriented.webp"] = save(image, "WEBP", lossless=True, exif=make_exif(3, ">"))
    return files


def with_adobe_rgb(jpeg):
    """Adobe marker with transform 0: three components that are RGB."""
    return jpeg[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00" + jpeg[jpeg.index(b"\xff\xdb"):]


def make_files():
    cat, coffee, astronaut, logo = data.chelsea(), data.coffee(), data.astronaut(), data.logo()
    a = photo(cat, 100, 60, 131, 97)
    b = photo(coffee, 200, 80, 90, 140)
    c = photo(astronaut, 150, 30, 120, 120)
    gray = a.convert("L")
    wide = np.asarray(a).astype(np.uint16) * 257 + 40
    soft = np.linspace(0, 400, 90 * 70).reshape(70, 90).astype(np.uint16)
    alpha = Image.fromarray(logo).resize((100, 80)).convert("RGBA")
    frames = [a.convert("RGBA"), a.transpose(Image.FLIP_LEFT_RIGHT).convert("RGBA")]
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "baseline_420.jpg": save(a, "JPEG", quality=88, subsampling="4:2:0"),
        "baseline_422.jpg": save(b, "JPEG", quality=88, subsampling="4:2:2"),
        "baseline_444.jpg": save(c, "JPEG", quality=85, subsampling="4:4:4"),
        "progressive_420.jpg": save(a, "JPEG", quality=85, progressive=True),
        "progressive_444.jpg": save(b, "JPEG", quality=85, subsampling="4:4:4", progressive=True),
        "restart.jpg": save(c, "JPEG", quality=80, restart_marker_blocks=3),
        "oriented.jpg": save(b, "JPEG", quality=80, exif=exif),
        "gray.jpg": save(gray, "JPEG", quality=85),
        "gray_progressive.jpg": save(gray, "JPEG", quality=85, progressive=True),
        "cmyk.jpg": save(b.convert("CMYK"), "JPEG", quality=85),
        "adobe_rgb.jpg": with_adobe_rgb(save(c, "JPEG", quality=85, subsampling="4:4:4")),
        "one_pixel.jpg": save(a.crop((5, 5, 6, 6)), "JPEG"),
        "narrow.jpg": save(a.crop((5, 5, 14, 90)), "JPEG", quality=90),
        "tall.jpg": save(photo(cat, 100, 0, 120, 300), "JPEG", quality=85),  # Pillow 13 goes down first here
        "taller.jpg": save(photo(cat, 200, 1, 81, 299), "JPEG", quality=85),
        "wide.jpg": save(a.crop((1, 5, 131, 8)), "JPEG", quality=90),
        "rgb.png": save(photo(cat, 100, 60, 70, 45), "PNG"),
        "rgb_interlaced.png": write_png(np.asarray(photo(cat, 100, 60, 61, 43)), 2, 8, interlaced=True),
        "rgb16.png": write_png(wide[:40, :50], 2, 16),
        "rgba16.png": write_png(np.dstack([wide[:30, :40], wide[:30, :40, :1]]), 6, 16),
        "rgba.png": save(alpha, "PNG"),
        "gray.png": save(gray.crop((0, 0, 60, 50)), "PNG"),
        "gray16.png": write_png(soft[..., None], 0, 16),
        "gray16_interlaced.png": write_png(soft[:33, :31, None], 0, 16, interlaced=True),
        "gray_alpha.png": save(alpha.convert("LA"), "PNG"),
        "gray_alpha16.png": write_png(np.dstack([soft[:40, :40] * 150, soft[:40, :40]]), 4, 16),
        "gray_transparent.png": save(gray.crop((0, 0, 40, 50)), "PNG", transparency=90),
        "bilevel.png": save(gray.convert("1"), "PNG"),
        "palette.png": save(c.quantize(61), "PNG"),
        "palette_4bit.png": save(c.quantize(16), "PNG", bits=4),
        "palette_2bit.png": save(c.quantize(4), "PNG", bits=2),
        "palette_transparent.png": save(c.quantize(50), "PNG", transparency=bytes(range(0, 250, 5))),
        "lossy.webp": save(a, "WEBP", quality=80),
        "lossless.webp": save(photo(cat, 100, 60, 70, 45), "WEBP", lossless=True),
        "lossy_alpha.webp": save(alpha, "WEBP", quality=80),
        "lossless_alpha.webp": save(alpha, "WEBP", lossless=True, exact=True),
        "animated.webp": save(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=70),
        "not_jpeg.jpg": save(photo(cat, 100, 60, 33, 21), "PNG"),
    }
    files["extraneous.jpg"] = insert_bytes(files["restart.jpg"])
    files["without_end_marker.jpg"] = files["baseline_420.jpg"][:-2]
    files["trailing_garbage.jpg"] = files["baseline_444.jpg"] + b"\0garbage" * 20
    files["without_iend.png"] = files["rgb.png"][:-12]
    files["restarted_baseline_420.jpg"] = half(files["baseline_420.jpg"]) + files["baseline_444.jpg"]
    files["restarted_in_the_last_rows.jpg"] = files["baseline_420.jpg"][:-90] + files["baseline_444.jpg"]
    files["cut_chunk_lossy.webp"] = cut_chunk(files["lossy.webp"], 131, 97)
    files["cut_chunk_lossless.webp"] = cut_chunk(files["lossless.webp"], 70, 45)
    for name, share in (("baseline_420.jpg", 0.6), ("progressive_420.jpg", 0.6), ("cmyk.jpg", 0.9), ("rgb.png", 0.6),
                        ("rgb_interlaced.png", 0.9), ("lossy.webp", 0.6), ("lossless.webp", 0.6), ("baseline_444.jpg", 0.01)):
        files["truncated_" + (f"{share}_" if share < 0.5 else "") + name] = files[name][:int(len(files[name]) * share)]
    return files


def half(jpeg):
    return jpeg[:len(jpeg) // 2].rstrip(b"\xff")


def cut_chunk(webp, width, height):
    """The image's chunk ends early; what follows it could be taken for pixels."""
    def riff(name, payload):
        return name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)

    side = lambda n: struct.pack("<I", n - 1)[:3]
    length, = struct.unpack("<I", webp[16:20])
    chunks = (riff(b"VP8X", b"\x08\0\0\0" + side(width) + side(height)) + riff(webp[12:16], webp[20:20 + length * 3 // 4])
              + riff(b"EXIF", make_exif(1) + bytes(range(256)) * 16))
    return riff(b"RIFF", b"WEBP" + chunks)


def insert_bytes(jpeg):
    """Bytes between the last restart marker's segment and the end: libjpeg warns, Pillow goes on."""
    return jpeg[:-2] + b"\x11\x22" + jpeg[-2:]


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def probe_pixels(image):
    """The first pixels of the middle row."""
    row = np.asarray(image)[image.height // 2, :4]
    return [int(v) for v in row.ravel()]


def resize_then_crop(image, size, resample):
    width, height = image.size
    short = min(width, height)
    resized = image.resize((size * width // short, size * height // short), resample)
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    return resized.crop((left, top, left + size, top + size))


def crop_then_resize(image, size, resample):
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((size, size), resample)


POLICIES = {"resize_then_crop": resize_then_crop, "crop_then_resize": crop_then_resize}


def expect(content):
    try:
        image = Image.open(io.BytesIO(content)).convert("RGB")
    except (OSError, SyntaxError) as error:
        return {"failure": str(error)}
    result = {"width": image.width, "height": image.height, "sha256": digest(image), "pixels": probe_pixels(image),
              "transforms": []}
    extreme = max(image.size) > 8 * min(image.size)
    for policy, apply in POLICIES.items():
        for name, resample in FILTERS.items():
            for size in RESOLUTIONS[:2] if extreme else RESOLUTIONS:
                out = apply(image, size, resample)
                result["transforms"].append({"policy": policy, "interpolation": name, "resolution": size,
                                             "sha256": digest(out), "pixels": probe_pixels(out)})
    return result


def expect_upright(content):
    image = Image.open(io.BytesIO(content)).convert("RGB")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    return {"width": image.width, "height": image.height, "sha256": digest(image), "pixels": probe_pixels(image),
            "transforms": [],
            "upright": {"width": upright.width, "height": upright.height, "sha256": digest(upright)}}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, content in make_files().items():
        (OUT / name).write_bytes(content)
        expected[name] = expect(content)
    for name, content in make_oriented().items():
        (OUT / name).write_bytes(content)
        expected[name] = expect_upright(content)
    versions = {"pillow": PIL.__version__, "libjpeg_turbo": features.version_feature("libjpeg_turbo"),
                "webp": features.version_module("webp")}
    text = json.dumps({"versions": versions, "files": expected}, indent=1)
    (OUT / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
