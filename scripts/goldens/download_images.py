#!/usr/bin/env python3
"""Goldens of `download.resize`: photos, and what img2dataset's resizer makes of them.

Writes tests/golden/download_images/: the photos and expected.json, with SHA-256 digests of the RGB bytes after resizing and
of those of the JPEG that is stored.
    .venv-goldens/bin/python scripts/goldens/download_images.py     in an environment with img2dataset and scikit-image
"""
import hashlib
import io
import json
import os
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
warnings.simplefilter("ignore")

import cv2
import numpy as np
from img2dataset.resizer import Resizer
from PIL import Image
from skimage import data

OUT = Path(__file__).resolve().parents[2] / "tests/golden/download_images"
MODES = {"keep": "keep_ratio", "center_crop": "center_crop", "border": "border"}  # ours -> img2dataset's
SIZES = {"photo.jpg": (32, 75, 128, 203, 256, 301, 400), "tall.jpg": (33, 64, 127, 300),
         "even.jpg": (33, 35, 50, 64, 100, 200, 201), "strip.jpg": (9, 16, 64), "line.jpg": (119, 121), "gray.jpg": (64, 150, 256)}
TRANSPARENT = ("alpha.png", "gray_alpha.png", "palette.png", "keyed.png", "gray_keyed.png",
               "lossy_alpha.webp", "lossless_alpha.webp")


def write_photos():
    coffee, cat, astronaut = data.coffee(), data.chelsea(), data.astronaut()
    photos = {"photo.jpg": coffee[60:263, 150:451], "tall.jpg": cat[40:231, 130:257], "even.jpg": astronaut[20:120, 120:320],
              "strip.jpg": coffee[200:209, 100:500], "line.jpg": coffee[100:220, 300:303],
              "gray.jpg": data.camera()[100:233, 150:305]}
    for name, pixels in photos.items():
        Image.fromarray(np.ascontiguousarray(pixels)).save(OUT / name, quality=80)


def write_transparent():
    colors = data.coffee()[200:244, 300:361]
    alpha = np.linspace(0, 255, colors.shape[0] * colors.shape[1]).reshape(colors.shape[:2]).astype(np.uint8)
    soft = Image.fromarray(np.dstack([colors, alpha]))
    soft.save(OUT / "alpha.png")
    soft.quantize(32).save(OUT / "palette.png")
    soft.convert("LA").save(OUT / "gray_alpha.png")
    soft.save(OUT / "lossy_alpha.webp", quality=80)
    soft.save(OUT / "lossless_alpha.webp", lossless=True)
    steps = colors // 64 * 64
    Image.fromarray(steps).save(OUT / "keyed.png", transparency=tuple(int(value) for value in steps[22, 30]))
    Image.fromarray(steps[..., 0]).save(OUT / "gray_keyed.png", transparency=int(steps[22, 30, 0]))


def resize(file, mode, size, format, quality):
    resizer = Resizer(size, MODES[mode], resize_only_if_bigger=False, encode_format=format, encode_quality=quality)
    stored, width, height, _, _, error = resizer(io.BytesIO(file))
    if error:
        raise RuntimeError(error)
    rgb = cv2.cvtColor(cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert rgb.shape == (height, width, 3)
    return {"width": width, "height": height}, hashlib.sha256(rgb.tobytes()).hexdigest()


def expect(name, mode, size, quality=95):
    file = (OUT / name).read_bytes()
    shape, pixels = resize(file, mode, size, "png", 1)
    _, stored = resize(file, mode, size, "jpg", quality)
    return {"file": name, "resize": mode, "image_size": size, "quality": quality, **shape, "pixels": pixels, "stored": stored}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    write_photos()
    write_transparent()
    cases = [expect(name, mode, size) for name, sizes in SIZES.items() for mode in MODES for size in sizes]
    cases += [expect(name, mode, size) for name in TRANSPARENT for mode, size in (("border", 40), ("keep", 64))]
    cases += [expect("photo.jpg", "keep", 128, quality) for quality in (1, 80, 100)]
    versions = {name: version(name) for name in ("img2dataset", "albumentations", "opencv-python-headless")}
    lines = ",\n".join(json.dumps(case) for case in cases)
    (OUT / "expected.json").write_text(f'{{"versions": {json.dumps(versions)},\n"cases": [\n{lines}\n]}}\n')


main()
