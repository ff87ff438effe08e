#!/usr/bin/env python3
"""Forward + backward of the U-Net: this program against diffusers eager, in turns within one run, fp32 on the CPU.

usage: unet_bench.py PATH/unet_speed [--threads 1] [--repetitions 15] [--shape tiny]
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
from diffusers import UNet2DConditionModel

DOWN, UP = ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"], ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"]
COMMON = {"down_block_types": DOWN, "up_block_types": UP, "layers_per_block": 1, "use_linear_projection": True}
SHAPES = {  # config, batch, side of the latents
    "tiny": ({**COMMON, "block_out_channels": [32, 64, 128], "attention_head_dim": [2, 4, 8],
              "cross_attention_dim": 64, "norm_num_groups": 8}, 32, 8),
    "wide64": ({**COMMON, "block_out_channels": [64, 128, 256], "attention_head_dim": [1, 2, 4],
                "cross_attention_dim": 128, "norm_num_groups": 16}, 8, 16),
    "wide64_manyheads": ({**COMMON, "block_out_channels": [64, 128, 128], "attention_head_dim": 8,
                          "cross_attention_dim": 64, "norm_num_groups": 16}, 8, 16),
}
TOKENS = 77


def reference(config, batch, side):
    """One repetition of diffusers: (forward, backward) in milliseconds."""
    torch.manual_seed(0)
    model = UNet2DConditionModel(**config)
    sample, target = torch.randn(batch, 4, side, side), torch.randn(batch, 4, side, side)
    context, timestep = torch.randn(batch, TOKENS, config["cross_attention_dim"]), torch.randint(1000, (batch,))

    def run():
        model.zero_grad()
        start = time.perf_counter()
        loss = torch.nn.functional.mse_loss(model(sample, timestep, context).sample, target)
        middle = time.perf_counter()
        loss.backward()
        return 1e3 * (middle - start), 1e3 * (time.perf_counter() - middle)

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    args = parser.parse_args()
    config, batch, side = SHAPES[args.shape]
    torch.set_num_threads(args.threads)
    theirs = reference(config, batch, side)
    command = [args.program, json.dumps(config), *map(str, (batch, side, TOKENS, args.threads))]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ours():
        program.stdin.write("\n")
        program.stdin.flush()
        return tuple(map(float, program.stdout.readline().split()))

    for run in (ours, theirs, ours, theirs):  # warm-up
        run()
    pairs = [(ours(), theirs()) for _ in range(args.repetitions)]
    program.stdin.close()
    for name, i in (("millrace", 0), ("diffusers", 1)):
        forward, backward = zip(*(pair[i] for pair in pairs))
        total = [f + b for f, b in zip(forward, backward)]
        print(f"{args.shape} t{args.threads} {name:9} forward {statistics.median(forward):7.1f}  backward "
              f"{statistics.median(backward):7.1f}  total {statistics.median(total):7.1f} ms (fastest {min(total):.1f})")
    ratios = sorted(sum(theirs) / sum(ours) for ours, theirs in pairs)
    print(f"{args.shape} t{args.threads} ratio: median {statistics.median(ratios):.2f}, "
          f"{ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} pairs")


if __name__ == "__main__":
    main()
