"""Goldens of data sources: archives and tables made by the reference tools, and the rows that follow from what those tools
read in them.

Run:  .venv-goldens/bin/python scripts/goldens/sources.py      (writes tests/golden/sources)
"""

import bz2
import gzip
import io
import json
import lzma
import pathlib
import shutil
import tarfile

import pyarrow
import pyarrow.parquet
import webdataset
from webdataset import tariterators

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "sources"
IMAGES = ("jpg", "png", "jpeg", "webp")


def accepted(name, key, caption):
    return f"{name}/{key}={caption}"


# ---------------------------------------------------------------------------------------------------------------- tars


def tar_bytes(members, tar_format=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if tar_format == tarfile.PAX_FORMAT:
                info.mtime = 1.5  # a fraction needs an extended header, as in webdataset's own archives
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def rows_by_webdataset(path, name):
    """Samples as webdataset groups them, and what a row of each is: the first of the image fields, txt, both or a reason."""
    with open(path, "rb") as stream:
        files = tariterators.tar_file_expander([dict(url="x", stream=stream)], handler=lambda error: False)
        samples = list(tariterators.group_by_keys(files, handler=lambda error: False))
    rows, seen = [], {}
    for sample in samples:
        key = sample["__key__"].removeprefix("./")
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            key += f"#{seen[key]}"
        if not any(field in sample for field in IMAGES):
            rows.append(f"{name}/{key}:missing_image")
        elif "txt" not in sample:
            rows.append(f"{name}/{key}:missing_caption")
        else:
            rows.append(accepted(name, key, sample["txt"].decode("utf-8", "replace")))
    return rows


def pair(key, caption, image="jpg"):
    return [(f"{key}.{image}", b"J" * 600), (f"{key}.txt", caption.encode())]


def make_tars():
    plain = pair("00000", "zero") + pair("00001", "") + pair("00002", "two", "png")
    archives = {
        "plain.tar": tar_bytes(plain),
        "dotted.tar": tar_bytes(pair("a.b/img.v2", "directory dot") + [("x.y.jpg", b"J"), ("x.txt", b"no image here")]),
        "directories.tar": tar_bytes(pair("d/e/0", "deep") + pair("d/f/0", "other") + pair("./1", "dot slash") + pair("1", "again")),
        "pax.tar": tar_bytes(pair("é/日本", "ünï") + pair("k" * 200, "long"), tarfile.PAX_FORMAT),
        "gnu.tar": tar_bytes(pair("k" * 120 + "/" + "n" * 120, "long"), tarfile.GNU_FORMAT),
        "repeated_keys.tar": tar_bytes(pair("a", "1") + pair("b", "2") + pair("a", "3") + pair("a.x", "4") + pair("c", "5")),
        "interleaved.tar": tar_bytes([("a.jpg", b"J"), ("b.jpg", b"J"), ("a.txt", b"a"), ("b.txt", b"b")]),
        "upper_case.tar": tar_bytes([("A.JPG", b"J"), ("A.TXT", b"upper"), ("B.Jpeg", b"J"), ("b.txt", b"another key")]),
        "hidden.tar": tar_bytes([(".hidden.jpg", b"J"), ("._0.jpg", b"mac"), ("0.jpg", b"J"), ("0.txt", b"seen"), ("noext", b"?")]),
        "meta.tar": tar_bytes([("__info__.json", b"{}"), ("__x__/0.jpg", b"J")] + pair("0", "kept")),
        "images.tar": tar_bytes(pair("0", "webp", "webp") + pair("1", "gif", "gif") + [("2.png", b"P"), ("2.jpg", b"J"), ("2.txt", b"both")]),
        "empty_members.tar": tar_bytes([("0.json", b""), ("0.jpg", b"J"), ("0.txt", b"")]),
        "no_samples.tar": tar_bytes([]),
    }
    archives["plain.tar.gz"] = gzip.compress(archives["plain.tar"], mtime=0)
    archives["plain.tar.bz2"] = bz2.compress(archives["plain.tar"])
    archives["plain.tar.xz"] = lzma.compress(archives["plain.tar"])
    archives["plain.tar.zst"] = pyarrow.compress(archives["plain.tar"], codec="zstd", asbytes=True)
    expected = {}
    for file, data in archives.items():
        (OUT / file).write_bytes(data)
        readable = OUT / ("plain.tar" if file.endswith(".zst") else file)  # Python 3.11's tarfile knows no zstd
        expected[file] = rows_by_webdataset(readable, file[: file.index(".tar")])
    return expected


# -------------------------------------------------------------------------------------------------------------- tables


def rows_of_table(path, image, caption, key=None):
    name, rows, seen = path.stem, [], {}
    for number, row in enumerate(pyarrow.parquet.read_table(path).to_pylist()):
        this = number if key is None else row[key]
        seen[this] = seen.get(this, 0) + 1
        row_id = f"{name}/{this}" + (f"#{seen[this]}" if seen[this] > 1 else "")
        data = row[image]["bytes"] if isinstance(row[image], dict) else row[image]
        if not data:
            rows.append(f"{row_id}:missing_image")
        elif row[caption] is None:
            rows.append(f"{row_id}:missing_caption")
        else:
            rows.append(f"{row_id}={row[caption]}")
    return rows


def holes(values, every, offset):
    return [None if i % every == offset else v for i, v in enumerate(values)]


def make_tables():
    n = 40
    images = [b"J%d" % i * 50 for i in range(n)]
    captions = [f"caption {i} é" for i in range(n)]
    # One file per shard as img2dataset's Parquet writer leaves it: failures stay, without an image.
    img2dataset = pyarrow.table({
        "url": [f"http://h/{i}.jpg" for i in range(n)], "caption": holes(captions, 11, 5), "key": [f"{i // 2:09d}" for i in range(n)],
        "status": ["failed_to_download" if i % 7 == 3 else "success" for i in range(n)], "error_message": holes(["e"] * n, 2, 1),
        "width": holes(list(range(200, 200 + n)), 7, 3), "punsafe": [i / n for i in range(n)],
        "jpg": pyarrow.array(holes(images, 7, 3), pyarrow.binary())})
    # Plain values, so that a test finds a page to damage.
    pyarrow.parquet.write_table(img2dataset, OUT / "00007.parquet", row_group_size=9, compression="none", use_dictionary=False)
    # hash, caption, height, width, jpg: a failed download left no bytes and no size.
    reference = pyarrow.table({
        "hash": list(range(1000, 1000 + n)), "caption": captions, "height": [float("nan") if i % 5 == 4 else 256.0 for i in range(n)],
        "width": [float("nan") if i % 5 == 4 else 256.0 for i in range(n)],
        "jpg": pyarrow.array([b"" if i % 5 == 4 else b for i, b in enumerate(images)], pyarrow.binary())})
    pyarrow.parquet.write_table(reference, OUT / "laion-art.parquet")
    # An image feature of Hugging Face data sets.
    hub = pyarrow.table({
        "image": pyarrow.array(holes([{"bytes": b, "path": f"{i}.png"} for i, b in enumerate(images)], 9, 2),
                               pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
        "text": pyarrow.array(captions, pyarrow.large_string()), "label": [i % 4 for i in range(n)]})
    pyarrow.parquet.write_table(hub, OUT / "hub.parquet", row_group_size=16)
    keyed = rows_of_table(OUT / "00007.parquet", "jpg", "caption", "key")
    return {"00007.parquet": rows_of_table(OUT / "00007.parquet", "jpg", "caption"),
            "laion-art.parquet": rows_of_table(OUT / "laion-art.parquet", "jpg", "caption"),
            "hub.parquet": rows_of_table(OUT / "hub.parquet", "image", "text")}, {"00007.parquet": keyed}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tars = make_tars()
    tables, keyed = make_tables()
    expected = {"tars": tars, "tables": tables, "tables by key": keyed,
                "versions": {"webdataset": webdataset.__version__, "pyarrow": pyarrow.__version__}}
    (OUT / "rows.json").write_text(json.dumps(expected, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
