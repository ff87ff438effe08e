#!/usr/bin/env python3
"""The Python stack from WebDataset tars to ready batches: rates of whole passes, each with every sample once.

Prints JSON lines {"bench", "figure", "unit", "median", "min", "max", "runs"}; steady is the rate after the first batch, processor
the time of all processes on a core, which other programs change less than they change rates. Sides:
  wds   WebDataset + torch's DataLoader, batches made in the workers, which live on between passes
  ray   Ray Data: read_webdataset + map_batches with a pool of transformers (needs ray and aiohttp); never shuffled
Transforms are those of transform_bench.py: sdtransform is the reference guide's; tv2 the fastest one that ends in bytes.
    loader_bench.py TAR... --tokenizer FOLDER [--side wds] [--workers 0] [--transform sdtransform] [--shuffle 1000]
                    [--batch 32] [--resolution 256] [--runs 5]
"""
import argparse
import itertools
import os
import pathlib
import time

from compare_loader import descendants
from figures import tell

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def make_transform(options):
    from transformers import CLIPTokenizer

    from transform_bench import SDTransform

    return SDTransform(options.resolution, CLIPTokenizer.from_pretrained(options.tokenizer))


class Samples:
    """One sample's transform, made in the worker that uses it."""

    def __init__(self, options):
        self.options = options
        self.transform = None

    def __call__(self, sample):
        if self.transform is None:
            self.transform = make_transform(self.options)
        image = getattr(self.transform, self.options.transform)([sample["jpg"]])[0]
        return image, self.transform.tokenize(sample["txt"].decode())


def stack(samples):
    import numpy as np
    import torch

    images, tokens = zip(*samples)
    as_tensor = torch.from_numpy if isinstance(images[0], np.ndarray) else torch.as_tensor
    return torch.stack([as_tensor(image) for image in images]), torch.from_numpy(np.stack(tokens))


def wds_passes(options):
    import torch
    import webdataset

    torch.set_num_threads(1)
    dataset = webdataset.WebDataset(options.tars, shardshuffle=False, workersplitter=webdataset.split_by_worker)
    if options.shuffle:
        dataset = dataset.shuffle(options.shuffle)
    dataset = dataset.map(Samples(options)).batched(options.batch, collation_fn=stack)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=options.workers,
                                         persistent_workers=options.workers > 0)
    while True:
        yield (len(tokens) for _, tokens in loader)


class RayTransform:
    def __init__(self, options):
        import torch

        torch.set_num_threads(1)
        self.transform = make_transform(options)
        self.figure = options.transform

    def __call__(self, batch):
        import numpy as np

        images = getattr(self.transform, self.figure)(list(batch["jpg"]))
        return {"images": np.asarray(images), "tokens": np.stack([self.transform.tokenize(text.decode()) for text in batch["txt"]])}


def ray_passes(options):
    import ray

    # Reading needs a CPU of its own beside the pool.
    ray.init(num_cpus=options.workers + 1, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    while True:
        dataset = ray.data.read_webdataset(options.tars, decoder=None)
        dataset = dataset.map_batches(RayTransform, fn_constructor_args=(options,), batch_size=options.batch,
                                      batch_format="pandas", concurrency=max(1, options.workers), num_cpus=1)
        yield (len(batch["tokens"]) for batch in dataset.iter_batches(batch_size=options.batch))


def processor_seconds():
    """Of this process and all below it that live (Ray's pool does not live long enough)."""
    ticks = 0
    for process in descendants(os.getpid()):
        try:
            fields = pathlib.Path("/proc", str(process), "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tars", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--side", choices=("wds", "ray"), default="wds")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--transform", default="sdtransform")
    parser.add_argument("--shuffle", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    options.tars = [os.path.abspath(tar) for tar in options.tars]
    options.tokenizer = os.path.abspath(options.tokenizer)

    passes = wds_passes(options) if options.side == "wds" else ray_passes(options)
    rates, steady, first, processor = [], [], [], []
    for batches in itertools.islice(passes, options.runs + 1):
        processor_start = processor_seconds()
        start = time.perf_counter()
        first_count = next(batches)
        first_seconds = time.perf_counter() - start
        rest = sum(batches)
        seconds = time.perf_counter() - start
        rates.append((first_count + rest) / seconds)
        steady.append(rest / (seconds - first_seconds))
        first.append(1000 * first_seconds)
        processor.append(1000 * (processor_seconds() - processor_start) / (first_count + rest))
    for figure, unit, values in (("samples", "samples/s", rates[1:]), ("steady", "samples/s", steady[1:]),
                                 ("processor", "ms/sample", processor[1:]), ("first_batch", "ms", first[1:])):
        tell("loader", figure, unit, values)


if __name__ == "__main__":
    main()
