#!/usr/bin/env python3
"""Scores of pictures, by numpy, scipy, Pillow and transformers.

Writes tests/golden/evaluate/: pictures, two feature networks as TorchScript and three that write or read files,
CLIPModel folders, of one the preprocessing alone, and expected.json with features, FID, KID and CLIP scores.
"""
import json
import shutil
import warnings
from pathlib import Path
from typing import Tuple

import numpy
import scipy.linalg
import torch
import transformers
from PIL import Image
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

warnings.filterwarnings("ignore")
transformers.utils.logging.set_verbosity_error()
GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden"
OUT = GOLDEN / "evaluate"
SIZES = [(37, 61), (300, 200), (299, 299), (640, 411), (5, 7), (312, 299)]
CAPTIONS = ["a red boat", "two cats on a roof, late in the evening", "", "é ü ß", "x " * 120, "A RED BOAT"]


def picture(n, width, height):
    """Waves and noise: all levels, hard edges too."""
    random = numpy.random.default_rng(n)
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [127 + 120 * numpy.sin(x / (3 + n + c) + y / (5 + c)) for c in range(3)]
    levels = numpy.stack(waves, -1) + random.normal(0, 20, (height, width, 3))
    levels[height // 3: height // 2, width // 4: width // 2] = [255, 0, 255]
    return numpy.clip(levels, 0, 255).astype(numpy.uint8)


def save_pictures():
    for n, (width, height) in enumerate(SIZES):
        small = picture(n, max(width // 8, 5), max(height // 8, 5))  # enlarged: little to store
        image = Image.fromarray(small).resize((width, height), Image.NEAREST)
        if n == 1:
            image = image.convert("L")
        if n == 3:
            image.putalpha(Image.fromarray(picture(9, 80, 52)).convert("L").resize((width, height), Image.NEAREST))
        image.save(OUT / "images" / f"{n}.png", optimize=True)
    (OUT / "images/notes.txt").write_text("no picture\n")


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 13, stride=7)

    def forward(self, x):
        y = torch.tanh(self.conv(x))
        return torch.cat([y.mean((2, 3)), y.amax((2, 3))], 1)


class Inception(torch.nn.Module):
    """As StyleGAN's file: `layers`, and a forward that resizes."""

    def __init__(self):
        super().__init__()
        self.layers = Layers()

    def forward(self, img, return_features: bool = False):
        x = torch.nn.functional.interpolate(img.to(torch.float32), size=(299, 299), mode="bilinear", align_corners=False)
        features = self.layers((x - 128) / 128)
        return features if return_features else features[:, :3]


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 23, stride=23)

    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(self.conv(x / 255), (2, 1))  # (B, 5, 2, 1)


class Saves(torch.nn.Module):
    """Writes a file when it is asked."""

    def forward(self, x):
        torch.ops.aten.save(x, "written")
        return x.mean((2, 3))


class SavesWhenLoaded(torch.nn.Module):
    """Is not even asked."""

    def __init__(self):
        super().__init__()
        self.state = 0

    @torch.jit.export
    def __getstate__(self) -> Tuple[int, bool]:
        return self.state, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[int, bool]):
        self.state = state[0]
        self.training = state[1]
        torch.ops.aten.save([state[0]], "written")

    def forward(self, x):
        return x.mean((2, 3))


class Reads(torch.nn.Module):
    def forward(self, x):
        return x.mean((2, 3)) + torch.ops.aten.from_file("read", False, 1)


def read(path):
    return numpy.asarray(Image.open(path).convert("RGB"))


def resize_clean(pixels):
    planes = [Image.fromarray(pixels[:, :, c].astype(numpy.float32), mode="F").resize((299, 299), Image.BICUBIC)
              for c in range(3)]
    return numpy.clip(numpy.stack([numpy.asarray(plane) for plane in planes]), 0, 255)


def frechet(a, b):
    mu1, mu2, s1, s2 = a.mean(0), b.mean(0), numpy.cov(a, rowvar=False), numpy.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(s1 @ s2)
    return float(((mu1 - mu2) ** 2).sum() + numpy.trace(s1 + s2 - 2 * root.real))


def kernel_distance(x, y):
    m, d = len(x), x.shape[1]
    xx, yy, xy = (x @ x.T / d + 1) ** 3, (y @ y.T / d + 1) ** 3, (x @ y.T / d + 1) ** 3
    within = (xx.sum() - numpy.trace(xx) + yy.sum() - numpy.trace(yy)) / (m * (m - 1))
    return float(within - 2 * xy.sum() / m ** 2)


def distances():
    random = numpy.random.default_rng(5)
    mix = random.normal(size=(7, 7))
    sets = {"wide": (random.normal(size=(40, 7)) @ mix, random.normal(size=(40, 7)) * 0.7 + 0.3),
            "singular": (random.normal(size=(5, 7)), random.normal(size=(5, 7)) + 0.5)}  # fewer rows than features
    return {name: {"a": a.tolist(), "b": b.tolist(), "fid": frechet(a, b), "kid": kernel_distance(a, b)}
            for name, (a, b) in sets.items()}


def save_processor(folder, size, crop, **others):
    processor = CLIPImageProcessorPil(size=size, crop_size=crop, **others)
    processor.save_pretrained(folder)
    # Sizes as the program has to understand them, also as older versions wrote them.
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": size, "crop_size": crop}, indent=2) + "\n")
    return processor


def clip_scores(model, tokenizer, processor):
    images = [Image.open(path).convert("RGB") for path in sorted((OUT / "images").glob("*.png"))]
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    ids = tokenizer(CAPTIONS, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
    with torch.no_grad():
        out = model(pixel_values=pixels, **ids)
    cosines = (out.image_embeds * out.text_embeds).sum(-1)
    assert cosines.min() < 0 < cosines.max(), cosines  # both sides of the cut
    return (100 * cosines.clamp(min=0)).tolist()


def clip_folder(name, eos, size, crop):
    folder = OUT / name
    tokenizer = CLIPTokenizer.from_pretrained(GOLDEN / "generate/tokenizer")
    torch.manual_seed(3)
    layers = dict(num_hidden_layers=1, num_attention_heads=2, projection_dim=12)
    model = CLIPModel(CLIPConfig(
        text_config=dict(vocab_size=514, hidden_size=16, intermediate_size=24, eos_token_id=eos, hidden_act="quick_gelu",
                         **layers),
        vision_config=dict(hidden_size=18, intermediate_size=20, image_size=28, patch_size=7, hidden_act="gelu", **layers),
        projection_dim=12)).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=0 if p.dim() > 1 else 0.4, std=0.3)
    model.half().float().half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return clip_scores(model.float(), tokenizer, save_processor(folder, size, crop))


def clip_of_other_numbers():
    """The network of clip: pictures smaller than its crop, and none of CLIP's own numbers."""
    model = CLIPModel.from_pretrained(OUT / "clip", dtype=torch.float32).eval()
    processor = save_processor(OUT / "clip_padded", size={"shortest_edge": 21}, crop={"height": 28, "width": 28},
                               rescale_factor=1 / 256, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.3, 0.4])
    return clip_scores(model, CLIPTokenizer.from_pretrained(OUT / "clip"), processor)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "images").mkdir(parents=True)
    torch.set_num_threads(1)
    save_pictures()
    torch.manual_seed(7)
    inception, plain = Inception().eval(), Plain().eval()
    torch.jit.script(inception).save(OUT / "inception.pt")
    torch.jit.script(plain).save(OUT / "plain.pt")
    for name, network in ("saves", Saves()), ("saves_when_loaded", SavesWhenLoaded()), ("reads", Reads()):
        torch.jit.script(network.eval()).save(OUT / f"{name}.pt")
    pixels = [read(path) for path in sorted((OUT / "images").glob("*.png"))]
    clean = torch.from_numpy(numpy.stack([resize_clean(p) for p in pixels]))
    expected = {"captions": CAPTIONS, "distances": distances(),
                "resized": {str(n): clean[n, :, ::37, ::23].flatten().tolist() for n in (0, 3, 4)}}
    with torch.no_grad():
        expected["clean"] = inception.layers((clean - 128) / 128).tolist()
        expected["plain"] = plain(clean).flatten(1).tolist()
        expected["legacy"] = [inception(torch.from_numpy(p.copy()).permute(2, 0, 1)[None], return_features=True)[0].tolist()
                              for p in pixels]
    expected["clip_old"] = clip_folder("clip_old", eos=2, size=28, crop=28)
    expected["clip"] = clip_folder("clip", eos=513, size={"shortest_edge": 33}, crop={"height": 28, "width": 28})
    expected["clip_padded"] = clip_of_other_numbers()
    features = numpy.asarray(expected["clean"], numpy.float32)
    numpy.savez_compressed(OUT / "statistics.npz", mu=features.astype(float).mean(0),
                           sigma=numpy.asfortranarray(numpy.cov(features.astype(float), rowvar=False)), n=6)
    numpy.savez_compressed(OUT / "kid.npz", feats=features)  # as clean-fid's files for KID
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


main()
