#!/usr/bin/env python3
"""Loads a pipeline folder the way its users will and fails on everything that diffusers or transformers complain about.

usage: check_pipeline.py FOLDER [--generate]
"""
import argparse
import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

import diffusers
import torch
import transformers


class Collector(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.name}: {record.getMessage()}")


def check_component(folder, name, library, class_name):
    """Loads one set of weights; returns what is wrong with it."""
    loader = getattr(importlib.import_module(library), class_name)
    model, info = loader.from_pretrained(folder / name, output_loading_info=True, use_safetensors=True)
    problems = [f"{name}: {kind}: {sorted(keys)[:5]}" for kind, keys in info.items() if keys]
    numbers = sum(p.numel() for p in model.parameters())
    if not problems and not all(torch.isfinite(p).all() for p in model.parameters()):
        problems.append(f"{name}: weights are not finite")
    print(f"{name:14} {class_name:22} {numbers:>13,} parameters")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--generate", action="store_true", help="make one image in two steps")
    args = parser.parse_args()

    collector = Collector()
    for library in (diffusers, transformers):
        library.utils.logging.get_logger().addHandler(collector)
        library.utils.logging.disable_progress_bar()
    warnings.showwarning = lambda message, *_: collector.lines.append(f"warning: {message}")

    index = json.loads((args.folder / "model_index.json").read_text())
    problems = []
    for name, value in index.items():
        if isinstance(value, list) and value[0] and (args.folder / name / "config.json").exists():
            problems += check_component(args.folder, name, *value)

    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(args.folder, use_safetensors=True)
    print(f"{'scheduler':14} {type(pipeline.scheduler).__name__}")
    print(f"{'tokenizer':14} {type(pipeline.tokenizer).__name__}, pad {pipeline.tokenizer.pad_token!r}")
    if args.generate:
        pipeline.set_progress_bar_config(disable=True)
        image = pipeline("a red circle", num_inference_steps=2).images[0]
        print(f"image          {image.size}")

    problems += collector.lines
    for problem in problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    print("failed" if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
