#!/usr/bin/env python3
"""img2dataset and millrace on the same list of URLs from the same local server: images per second of each.

    scripts/bench/download_bench.py --millrace build/release/bin/millrace [--images 4000] [--processes 2] [--runs 3]

Needs img2dataset and Pillow in the Python that runs it. Server and downloader share the machine, so the numbers are for
comparing only. Both keep what they got without resizing (img2dataset re-encodes to JPEG by default; it is told not to),
verify nothing, and write tars of 1,000 rows with a Parquet sidecar.
"""

import argparse
import asyncio
import csv
import io
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def make_images(count=64, side=(512, 384)):
    from PIL import Image, ImageFilter

    draw = random.Random(420)
    images = []
    for _ in range(count):
        noise = Image.frombytes("RGB", (side[0] // 8, side[1] // 8), draw.randbytes(side[0] // 8 * (side[1] // 8) * 3))
        data = io.BytesIO()
        noise.resize(side, Image.BICUBIC).filter(ImageFilter.SMOOTH).save(data, "JPEG", quality=90)
        images.append(data.getvalue())
    return images


def serve(port_queue, images):
    class Connection(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            path = data.split(b" ", 2)[1]
            if path == b"/robots.txt":
                self.transport.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                return
            body = images[int(path[1:]) % len(images)]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def main():
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
        port_queue.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def run_img2dataset(work, urls, processes):
    subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "img2dataset"), "--url_list", urls, "--input_format", "csv",
         "--url_col", "url", "--caption_col", "caption", "--output_format", "webdataset", "--output_folder", work,
         "--processes_count", str(processes), "--thread_count", "32", "--number_sample_per_shard", "1000",
         "--resize_mode", "no", "--skip_reencode", "True", "--enable_wandb", "False"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_millrace(millrace, work, urls, processes):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(processes)] if processes > 1 else []
    subprocess.run(
        launcher + [millrace, "download", f"download.urls={urls}", f"download.out={work}", "download.columns.url=url",
                    "download.columns.caption=caption", "download.rows_per_file=1000", "download.per_host=32",
                    "download.connections=32", "download.allow_networks=127.0.0.0/8"],
        check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def successes(work):
    return sum(json.loads(path.read_text())["successes"] for path in pathlib.Path(work).glob("*_stats.json"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a line for each run, which scripts/bench/record keeps")
    options = parser.parse_args()

    ports = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports, make_images()), daemon=True)
    server.start()
    port = ports.get()
    root = pathlib.Path(tempfile.mkdtemp())
    urls = root / "urls.csv"
    with open(urls, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["url", "caption"])
        writer.writerows([f"http://127.0.0.1:{port}/{i}", f"caption {i}"] for i in range(options.images))

    seconds = {"img2dataset": [], "millrace": []}
    for run in range(options.runs):
        for name in seconds:
            work = root / f"{name}-{run}"
            start = time.monotonic()
            if name == "millrace":
                run_millrace(options.millrace, str(work), str(urls), options.processes)
            else:
                run_img2dataset(str(work), str(urls), options.processes)
            seconds[name].append(time.monotonic() - start)
            got = successes(work)
            assert got == options.images, f"{name}: {got} of {options.images}"
            shutil.rmtree(work)
            if options.json:
                print(json.dumps({"bench": "download", "side": name, "figure": "images", "unit": "img/s", "median": options.images / seconds[name][-1]}))
    shutil.rmtree(root)
    server.terminate()
    if options.json:
        return
    for name, values in seconds.items():
        rates = [options.images / value for value in values]
        print(f"{name:12} {statistics.median(rates):8.0f} img/s  (runs: {', '.join(f'{rate:.0f}' for rate in rates)})")
    print(f"ratio        {statistics.median(seconds['img2dataset']) / statistics.median(seconds['millrace']):8.2f}")


if __name__ == "__main__":
    main()
