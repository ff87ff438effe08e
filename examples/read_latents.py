#!/usr/bin/env python3
"""Reads a latent cache (docs/formats.md) with h5py.

    examples/read_latents.py CACHE       # what it holds, a line per file
    examples/read_latents.py CACHE ID    # and the numbers of one sample, in short

In your own program, with this file beside it:

    import read_latents
    for id, caption, moments, text in read_latents.samples("CACHE"): ...

`moments` is float16 (2 C, h, w), mean and log-variance of the VAE's posterior; `text` is float16 (77, width), the text
embedding of the caption, or int32 (77), its token ids, where that is what the cache holds. `latent(moments, noise, scaling_factor)` makes of them what the U-Net is trained on. Where xxhash
is installed, every file is compared with its digest first.
"""
import json
import sys
from pathlib import Path

import h5py
import numpy as np

try:
    from xxhash import xxh3_128_hexdigest as digest
except ImportError:
    digest = None


def files(cache):
    """(content of NAME.json, path of NAME.h5) of every file. One without .json was left behind by a killed run."""
    for sidecar in sorted(Path(cache).glob("rows/*/*.json")):
        info = json.loads(sidecar.read_text())
        if info["format"] != 1:
            raise SystemExit(f"{sidecar}: format {info['format']}, known is 1")
        path = sidecar.with_suffix(".h5")
        if digest and digest(path.read_bytes()) != info["xxh3_128"]:
            raise SystemExit(f"{path}: its digest is wrong")
        yield info, path


def samples(cache):
    for _, path in files(cache):
        with h5py.File(path) as file:
            names = zip(file["ids"].asstr()[:], file["captions"].asstr()[:])
            for index, (name, caption) in enumerate(names):
                yield name, caption, file["moments"][index], file["text" if "text" in file else "tokens"][index]


def latent(moments, noise, scaling_factor):
    """A sample of the posterior; `scaling_factor` stands in the pipeline's vae/config.json."""
    mean, log_variance = np.split(moments.astype(np.float32), 2)
    return (mean + np.exp(np.clip(log_variance, -30, 20) / 2) * noise) * scaling_factor


def main():
    cache = Path(sys.argv[1])
    description = json.loads((cache / "CACHE.json").read_text())
    complete = "complete" if (cache / "MANIFEST.json").exists() else "not complete"
    text = next(f"{name} {description[name]}" for name in ("text", "tokens") if name in description)
    print(f"{cache}: moments {description['moments']}, {text}, {complete}")
    for info, path in files(cache):
        with h5py.File(path) as file:
            rows = len(file["rows"])
        rejected = {reason: sum(count for _, _, count in runs) for reason, runs in info["rejected"].items()}
        print(f"{info['archive']}  {path.name}  {rows} samples, rejected {rejected}")
    if len(sys.argv) < 3:
        return
    for name, caption, moments, text in samples(cache):
        if name == sys.argv[2]:
            sample = latent(moments, np.zeros(1, np.float32), 1)
            print(f"{name}  {caption!r}\n  mean {sample.shape} {sample.mean():.4f}, text {text.shape} {text.mean():.4f}")
            return
    raise SystemExit(f"{cache}: no sample {sys.argv[2]}")


if __name__ == "__main__":
    main()
