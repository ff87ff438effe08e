#!/usr/bin/env python3
"""Photos for benchmarks: random crops of scikit-image's bundled photographs with film grain, JPEG q90, as a WebDataset tar.

    make_photos.py OUT.tar [--count 500] [--long-side 512] [--seed 420] [--folder DIR]
"""
import argparse
import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field", "immunohistochemistry", "grass",
          "gravel", "brick", "camera", "coins")
NOUNS = ("a cat", "a cup of coffee", "an astronaut", "a rocket", "old coins", "a garden wall", "tall grass", "a city street",
         "a galaxy", "a portrait of a woman", "two boats", "a red bicycle", "an empty room", "mountains at dawn")
WORDS = ("photo of", "beautiful", "vintage", "high quality", "stock photo,", "with", "and", "in the background,", "35mm,",
         "for sale", "sunset", "oil on canvas", "by the sea", "close-up", "2019", "free download", "wallpaper")
SHAPES = ((4, 3), (3, 4), (3, 2), (2, 3), (1, 1), (16, 9))


def load_sources():
    for name in PHOTOS:
        pixels = getattr(data, name)()
        yield np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels[..., :3]


def random_crop(sources, long_side, random):
    pixels = sources[random.integers(len(sources))]
    across, down = SHAPES[random.integers(len(SHAPES))]
    scale = long_side / max(across, down)
    width, height = round(across * scale), round(down * scale)
    share = random.uniform(0.6, 1.0) * min(pixels.shape[1] / width, pixels.shape[0] / height)
    crop_width, crop_height = int(width * share), int(height * share)
    left = random.integers(pixels.shape[1] - crop_width + 1)
    top = random.integers(pixels.shape[0] - crop_height + 1)
    crop = Image.fromarray(pixels[top:top + crop_height, left:left + crop_width])
    return np.asarray(crop.resize((width, height), Image.LANCZOS))


def make_photo(sources, long_side, random):
    pixels = random_crop(sources, long_side, random)
    grain = random.normal(0, 3, pixels.shape[:2])[..., None]
    image = Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))
    if random.random() < 0.02:
        image = image.convert("L")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue(), image.size


def make_caption(random):
    words = [NOUNS[random.integers(len(NOUNS))], *(WORDS[i] for i in random.integers(len(WORDS), size=random.integers(4, 11)))]
    return " ".join(words).capitalize()


def samples(count, long_side, seed):
    random = np.random.default_rng(seed)
    sources = list(load_sources())
    for index in range(count):
        photo, (width, height) = make_photo(sources, long_side, random)
        metadata = {"width": width, "height": height, "original_width": width, "original_height": height}
        yield f"{index:09d}", {"jpg": photo, "json": json.dumps(metadata).encode(), "txt": make_caption(random).encode()}


def write_tar(path, samples):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for key, fields in samples:
            for extension, content in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_folder(path, samples):
    path.mkdir(parents=True, exist_ok=True)
    captions = []
    for key, fields in samples:
        (path / f"{key}.jpg").write_bytes(fields["jpg"])
        captions.append(fields["txt"].decode())
    (path / "captions.txt").write_text("\n".join(captions) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--long-side", type=int, default=512)
    parser.add_argument("--seed", type=int, default=420)
    parser.add_argument("--folder", type=Path, help="also as single files and captions.txt")
    options = parser.parse_args()
    made = list(samples(options.count, options.long_side, options.seed))
    write_tar(options.out, made)
    if options.folder:
        write_folder(options.folder, made)


if __name__ == "__main__":
    main()
