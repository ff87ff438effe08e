#!/usr/bin/env python3
"""One device against the CPU: `millrace probe` on the same random inputs, fp32 on the CPU being the reference.

    probe_compare.py --pipeline DIR [--device cuda] [--dtypes float32,bfloat16] [--side 8] [--no-gradients] -- MILLRACE...

MILLRACE is the command that starts the program. Needs torch alone. Errors are ||a - b|| / ||b||; for gradients, per
parameter, ||b|| has a floor of a thousandth of the norm over all parameters, below which rounding is all there is.
Ends with 1 when an error is above its tolerance.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# Relative error of (results, gradients). float32 runs without TF32, so that only the order of sums differs; bfloat16 has
# 8 bits, and some 50 layers follow each other.
TOLERANCES = {"float32": (1e-4, 1e-3), "bfloat16": (5e-2, 1e-1)}
FORMATS = {torch.float32: "F32", torch.int64: "I64"}
TOKENS = 77


def save(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {"dtype": FORMATS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    content = bytearray(Path(path).read_bytes())
    size = struct.unpack_from("<Q", content)[0]
    header = json.loads(bytes(content[8:8 + size]))
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(content, dtype=torch.float32, offset=8 + size + entry["data_offsets"][0],
                                   count=max(1, torch.Size(entry["shape"]).numel())).reshape(entry["shape"])
            for name, entry in header.items()}


def config(pipeline, component):
    return json.loads((Path(pipeline) / component / "config.json").read_text())


def make_inputs(component, pipeline, side, batch, gradients):
    torch.manual_seed(1)
    unet, vae, text = (config(pipeline, name) for name in ("unet", "vae", "text_encoder"))
    latent = torch.randn(batch, unet["in_channels"], side, side)
    if component == "unet":
        inputs = {"sample": latent, "timestep": torch.randint(1000, (batch,)),
                  "encoder_hidden_states": torch.randn(batch, TOKENS, unet["cross_attention_dim"])}
        return {**inputs, "target": torch.randn_like(latent)} if gradients else inputs
    if component == "vae-encode":
        pixels = side * 2 ** (len(vae["block_out_channels"]) - 1)
        return {"image": torch.rand(batch, 3, pixels, pixels) * 2 - 1}
    if component == "vae-decode":
        return {"latent": torch.randn(batch, vae["latent_channels"], side, side)}
    return {"ids": torch.randint(text["vocab_size"], (batch, TOKENS))}


def probe(command, component, options, device, dtype, folder):
    output = folder / f"{component}-{device}-{dtype}.safetensors"
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    subprocess.run([*command, "probe", "--component", component, "--pipeline", options.pipeline, "--input", folder / "input.safetensors",
                    "--output", output, f"run.device={device}", f"model.dtype={dtype}"], check=True, env=environment)
    return load(output)


def relative_error(got, expected, floor=0.0):
    difference = (got.double() - expected.double()).norm().item()
    error = difference / max(expected.double().norm().item(), floor, 1e-30)
    return error if error == error else float("inf")   # NaN is the worst error


def worst_errors(got, expected):
    """(name, error) of the worst result and of the worst gradient, if there are any."""
    if got.keys() != expected.keys():
        raise SystemExit(f"different tensors: {sorted(got.keys() ^ expected.keys())[:5]}")
    gradients = [name for name in expected if name.startswith("grad.")]
    floor = 1e-3 * sum(expected[name].double().square().sum().item() for name in gradients) ** 0.5
    results = max(((name, relative_error(got[name], expected[name])) for name in expected if name not in gradients), key=lambda e: e[1])
    worst = max(((name, relative_error(got[name], expected[name], floor)) for name in gradients), key=lambda e: e[1], default=None)
    return results, worst


def compare(component, command, options, folder):
    """Whether `component` agrees for every dtype."""
    save(folder / "input.safetensors", make_inputs(component, options.pipeline, options.side, options.batch, options.gradients))
    expected = probe(command, component, options, "cpu", "float32", folder)
    agrees = True
    for dtype in options.dtypes.split(","):
        got = probe(command, component, options, options.device, dtype, folder)
        for found, tolerance in zip(worst_errors(got, expected), TOLERANCES[dtype]):
            if not found:
                continue
            name, error = found
            agrees &= error <= tolerance
            print(f"{'ok  ' if error <= tolerance else 'FAIL'} {component:<11} {dtype:<9} error {error:.1e} (at most {tolerance:.0e}), worst: {name}", flush=True)
    return agrees


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--components", default="unet,vae-encode,vae-decode,text")
    parser.add_argument("--side", type=int, default=8, help="of the latents")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--no-gradients", dest="gradients", action="store_false")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        agreed = [compare(component, options.command, options, Path(folder)) for component in options.components.split(",")]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
