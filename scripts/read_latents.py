#!/usr/bin/env python3
"""Reads a latent cache (docs/formats.md) with h5py: prints what is in it.

    scripts/read_latents.py CACHE [ID]     # with an id: that sample's numbers

As a module: `for id, caption, moments, text in read_latents.rows("CACHE"): ...` with float16 arrays (8,h,w) and (77,C).
Needs Python with h5py; with xxhash it checks digests as well.
"""
import json
import sys
from pathlib import Path

import h5py

try:
    from xxhash import xxh3_128_hexdigest as digest
except ImportError:
    digest = None


def files(cache):
    """(NAME.json's content, path of NAME.h5) of every file, digests checked."""
    for sidecar in sorted(Path(cache).glob("rows/*/*.json")):
        info = json.loads(sidecar.read_text())
        path = sidecar.with_suffix(".h5")
        if digest and digest(path.read_bytes()) != info["xxh3_128"]:
            raise SystemExit(f"{path}: its digest is wrong")
        yield info, path


def rows(cache):
    for _, path in files(cache):
        with h5py.File(path) as file:
            names = zip(file["ids"].asstr()[:], file["captions"].asstr()[:])
            for index, (name, caption) in enumerate(names):
                yield name, caption, file["moments"][index], file["text"][index]


def main():
    cache = Path(sys.argv[1])
    description = json.loads((cache / "CACHE.json").read_text())
    print(f"moments {description['moments']}, text {description['text']}, complete: {(cache / 'MANIFEST.json').exists()}")
    for info, path in files(cache):
        with h5py.File(path) as file:
            shapes = {name: (str(data.dtype), *data.shape) for name, data in file.items()}
        print(f"{info['archive']}  {path.name}  rejected {sum(n for r in info['rejected'].values() for *_, n in r)}  {shapes}")
    for name, caption, moments, text in rows(cache):
        if len(sys.argv) > 2 and name == sys.argv[2]:
            print(f"{name}: {caption!r}\n  mean {moments[:4].mean():.4f}, log-variance {moments[4:].mean():.4f}, text {text.mean():.4f}")


if __name__ == "__main__":
    main()
