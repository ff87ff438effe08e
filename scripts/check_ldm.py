#!/usr/bin/env python3
"""Reads a file of `millrace export --format ldm` with diffusers' converter, and compares every tensor with the folder that
`millrace export` makes of the same checkpoint.

    check_ldm.py FILE.safetensors FOLDER
"""
import json
import pathlib
import sys

import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file

file, folder = map(pathlib.Path, sys.argv[1:])
pipeline = StableDiffusionPipeline.from_single_file(str(file), config=str(folder), local_files_only=True, safety_checker=None)
for component, stem in (("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model"), ("text_encoder", "model")):
    expected = load_file(folder / component / f"{stem}.safetensors")
    found = getattr(pipeline, component).state_dict()
    if component == "text_encoder":  # with or without the prefix, by transformers' version
        expected, found = ({name.removeprefix("text_model."): value for name, value in tensors.items()
                            if not name.endswith("position_ids")} for tensors in (expected, found))
    assert expected.keys() == found.keys(), (component, sorted(expected.keys() ^ found.keys())[:5])
    for name, value in expected.items():
        assert torch.equal(value, found[name]), (component, name)
    print(json.dumps({"component": component, "tensors": len(expected), "equal": True}))
