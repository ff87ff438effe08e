#!/usr/bin/env python3
"""The Python stack on the transform of training images, one thread: read from a tar, decode, resize, crop, tokenise.

Prints JSON lines {"bench", "figure", "unit", "median", "min", "max", "runs"}. Figures:
  sdtransform   PIL + torchvision + CLIPTokenizer as in the reference guide (ToTensor and Normalize included)
  pil_uint8     the same up to the uint8 crop, what `millrace bench transform` does
  tv2           torchvision decode_jpeg + v2 antialiased resize on uint8 tensors
  cv2           OpenCV imdecode, crop, INTER_AREA / INTER_CUBIC resize
  decode_tv, decode_cv2, decode_pil   JPEG decode alone (libjpeg-turbo behind all three)
    transform_bench.py PHOTOS.tar --tokenizer FOLDER [--resolution 256] [--runs 5] [--figures a,b]
"""
import argparse
import io
import tarfile
import time

import cv2
import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as v2
from transformers import CLIPTokenizer

from figures import tell


def read_samples(path):
    fields = {}
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, extension = member.name.partition(".")
            fields.setdefault(key, {})[extension] = archive.extractfile(member).read()
    return [(sample["jpg"], sample["txt"].decode()) for sample in fields.values()]


class LargestCenterSquare:
    """Shorter side to `size`, then the middle square: the guide's class, its max_size read as the shorter side."""

    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        image = torchvision.transforms.functional.resize(image, self.size)
        width, height = image.size
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return torchvision.transforms.functional.crop(image, top, left, self.size, self.size)


class SDTransform:
    def __init__(self, resolution, tokenizer):
        self.resolution = resolution
        self.tokenizer = tokenizer
        self.crop = LargestCenterSquare(resolution)
        self.transforms = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])

    def tokenize(self, text):
        return self.tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="np")["input_ids"][0]

    def crop_image(self, image):
        return self.crop(Image.open(io.BytesIO(image)).convert("RGB"))

    def sdtransform(self, images):
        return np.stack([self.transforms(self.crop_image(image)).numpy() for image in images])

    def pil_uint8(self, images):
        return np.stack([np.asarray(self.crop_image(image)) for image in images])

    def tv2_one(self, image):
        pixels = decode_jpeg(torch.frombuffer(bytearray(image), dtype=torch.uint8), ImageReadMode.RGB)
        return v2.center_crop(v2.resize(pixels, [self.resolution], antialias=True), [self.resolution])

    def tv2(self, images):
        return torch.stack([self.tv2_one(image) for image in images])

    def cv2_one(self, image):
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
        side = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
        method = cv2.INTER_AREA if side > self.resolution else cv2.INTER_LINEAR
        square = np.ascontiguousarray(pixels[top:top + side, left:left + side])
        return cv2.resize(square, (self.resolution, self.resolution), interpolation=method)

    def cv2(self, images):
        return np.stack([self.cv2_one(image) for image in images])


def decode_alone(figure, image):
    if figure == "decode_pil":
        Image.open(io.BytesIO(image)).convert("RGB")
    elif figure == "decode_cv2":
        cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
    else:
        decode_jpeg(torch.frombuffer(bytearray(image), dtype=torch.uint8), ImageReadMode.RGB)


def make_pass(figure, transform, samples, batch):
    """One pass over all samples in batches, as map_batches would call it."""
    def run():
        for start in range(0, len(samples), batch):
            images, captions = zip(*samples[start:start + batch])
            if figure.startswith("decode_"):
                for image in images:
                    decode_alone(figure, image)
                continue
            getattr(transform, figure)(images)
            for caption in captions:
                transform.tokenize(caption)
    return run


def measure(run, count, runs):
    rates = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        run()
        rates.append(count / (time.perf_counter() - start))
    return rates[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tar")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--figures", default="sdtransform,pil_uint8,tv2,cv2,decode_tv,decode_cv2,decode_pil")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    samples = read_samples(options.tar)
    transform = SDTransform(options.resolution, CLIPTokenizer.from_pretrained(options.tokenizer))
    for figure in options.figures.split(","):
        rates = measure(make_pass(figure, transform, samples, options.batch), len(samples), options.runs)
        tell("transform", figure, "images/s", rates)


if __name__ == "__main__":
    main()
