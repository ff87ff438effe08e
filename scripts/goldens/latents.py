#!/usr/bin/env python3
"""Goldens of Parquet files with finished encodings, as pipelines in Python write them.

Writes tests/golden/latents/*.parquet (one per way to store a tensor) and expected.json: the bits of every good row.
    .venv-goldens/bin/python scripts/goldens/latents.py
"""
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path(__file__).resolve().parents[2] / "tests/golden/latents"
LATENT, TEXT, SCALING = (4, 2, 2), (3, 2), np.float32(0.18215)


class RayTensor(pa.ExtensionType):
    """Named and stored as Ray Data's tensors of one shape are."""

    def __init__(self, shape):
        self.shape = shape
        super().__init__(pa.large_list(pa.float32()), "ray.data.arrow_tensor_v2")

    def __arrow_ext_serialize__(self):
        return json.dumps(self.shape).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls(json.loads(serialized))


def nested(values, number):
    depth = values[0].ndim
    kind = number
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.array([v.tolist() for v in values], kind)


def ray(values):
    kind = RayTensor(list(values[0].shape))
    return pa.ExtensionArray.from_storage(kind, pa.array([v.ravel().tolist() for v in values], kind.storage_type))


def ragged(values):
    kind = pa.struct([("data", pa.list_(pa.float32())), ("shape", pa.list_(pa.int64()))])
    return pa.array([{"data": v.ravel().tolist(), "shape": list(v.shape)} for v in values], kind)


def fixed_shape(values):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))


def raw(values, dtype):
    return pa.array([v.astype(dtype).tobytes() for v in values], pa.binary())


def bits(values):
    return values.astype(np.float16).view(np.uint16).ravel().tolist()


def row(latent, text):
    means = latent.astype(np.float32) / SCALING
    return {"moments": bits(means) + bits(np.full(latent.size, -30.0)), "text": bits(text)}


def write(name, image, caption, names=("image_latents_16", "caption_embeddings")):
    table = pa.table({"caption": pa.array(["a caption"] * len(image)), names[0]: image, names[1]: caption})
    pq.write_table(table, OUT / f"{name}.parquet", row_group_size=3)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(420)
    latents = [generator.standard_normal(LATENT).astype(np.float32) for _ in range(5)]
    texts = [generator.standard_normal(TEXT).astype(np.float32) for _ in range(5)]
    f16 = lambda values: [v.astype(np.float16) for v in values]
    write("nested", nested(latents, pa.float32()), nested(texts, pa.float32()))
    write("doubles", nested(latents, pa.float64()), nested(texts, pa.float64()),
          ("latents_16_bytes", "caption_latents"))
    write("halves", nested(f16(latents), pa.float16()), nested(f16(texts), pa.float16()))
    write("ray", ray(latents), ray(texts))
    write("ragged", ragged(latents), ragged(texts))
    write("fixed_shape", fixed_shape(latents), fixed_shape(texts))
    write("bytes_f32", raw(latents, np.float32), raw(texts, np.float32))
    write("bytes_f16", raw(latents, np.float16), raw(texts, np.float16), ("latents_16", "caption_latents"))

    spoilt = [latents[0].ravel().tolist() for _ in range(8)]
    states = [texts[0].ravel().tolist() for _ in range(8)]
    spoilt[1], spoilt[2], spoilt[3], states[4], states[5] = None, spoilt[2][:-1], [float("nan")] * 16, None, [1e6] * 6
    spoilt[6][3], states[7] = None, []
    write("spoilt", pa.array(spoilt, pa.list_(pa.float32())), pa.array(states, pa.list_(pa.float32())))
    expected = {"versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
                "f32": [row(*pair) for pair in zip(latents, texts)],
                "f16": [row(*pair) for pair in zip(f16(latents), f16(texts))],
                "spoilt": ["", "missing_image", "decode_error", "non_finite", "missing_caption", "non_finite", "non_finite",
                           "missing_caption"]}
    (OUT / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
