"""The tensors of a checkpoint, put together by docs/formats.md alone: tests/golden/checkpoints/FORMAT/expected.safetensors."""
import json
import sys
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file

folder = Path(sys.argv[1])
manifest = json.loads((folder / "MANIFEST.json").read_text())
files = {entry["name"]: load_file(folder / entry["name"]) for entry in manifest["files"] if entry["name"].endswith(".safetensors")}
tensors = {}
for key, entry in manifest["tensors"].items():
    flat = numpy.concatenate([files[part["file"]][key] for part in entry["parts"]])
    shape = entry["shape"]
    if entry["channels_last"]:
        tensors[key] = numpy.ascontiguousarray(flat.reshape(shape[0], shape[2], shape[3], shape[1]).transpose(0, 3, 1, 2))
    else:
        tensors[key] = flat.reshape(shape)
save_file(tensors, folder / "expected.safetensors")
print(f"{folder}: {len(tensors)} tensors")
