#!/usr/bin/env python3
"""diffusers' StableDiffusionPipeline on the same folder as `millrace bench generate`: images a second, as a JSON line.

    generate_bench.py --pipeline DIR [--threads 1] [--batch 8] [--steps 20] [--runs 5]
"""
import argparse
import logging
import time

import torch
from diffusers import StableDiffusionPipeline
from diffusers.utils import logging as diffusers_logging

from figures import tell

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--pipeline", required=True)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--runs", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(args.threads)
diffusers_logging.disable_progress_bar()
logging.disable(logging.WARNING)
pipeline = StableDiffusionPipeline.from_pretrained(args.pipeline, safety_checker=None)
pipeline.set_progress_bar_config(disable=True)
prompts = [f"picture number {i} of a benchmark" for i in range(args.batch)]

rates = []
for run in range(args.runs + 1):
    generators = [torch.Generator().manual_seed(i) for i in range(args.batch)]
    start = time.perf_counter()
    images = pipeline(prompts, generator=generators, num_inference_steps=args.steps).images
    if run > 0:  # the first warms up
        rates.append(args.batch / (time.perf_counter() - start))
    assert len(images) == args.batch
tell("generate", "images", "images/s", rates)
