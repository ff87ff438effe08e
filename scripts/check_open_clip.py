#!/usr/bin/env python3
"""How often `millrace tokenize --mode open_clip` differs from open_clip itself, on captions of your own.

    .venv-goldens/bin/python scripts/check_open_clip.py CAPTIONS [--column TEXT] [--millrace build/release/bin/millrace]

CAPTIONS: a text file, one caption per line, or a Parquet file. Also counts the captions whose mojibake ftfy repairs, on
the captions as they are and with the faults of web pages added to each (references, curly quotes, mojibake).
"""
import argparse
import html
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import ftfy
from open_clip.tokenizer import SimpleTokenizer


def read_captions(path, column):
    if path.suffix != ".parquet":
        return path.read_text(errors="replace").splitlines()
    import pyarrow.parquet as pq
    return [text for text in pq.read_table(path, columns=[column]).column(0).to_pylist() if text is not None]


def with_curly_quotes(text, generator):
    return text.replace("'", generator.choice("’‘")).replace('"', generator.choice("“”")).replace(" - ", " – ")


def with_references(text, generator):
    once = html.escape(text).replace("é", "&eacute;").replace("–", "&ndash;").replace("’", "&rsquo;")
    return html.escape(once) if generator.random() < 0.2 else once


def with_mojibake(text, generator):
    return text.encode().decode("windows-1252", errors="replace")


VARIANTS = {"as they are": lambda text, generator: text,
            "curly quotes": with_curly_quotes,
            "curly quotes as HTML": lambda text, generator: with_references(with_curly_quotes(text, generator), generator),
            "curly quotes as mojibake": lambda text, generator: with_mojibake(with_curly_quotes(text, generator), generator)}


def tokenize(millrace, pipeline, captions):
    lines = "".join(json.dumps(caption) + "\n" for caption in captions)
    command = [millrace, "tokenize", "--pipeline", pipeline, "--mode", "open_clip"]
    output = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--column", default="TEXT")
    parser.add_argument("--millrace", default="build/release/bin/millrace")
    options = parser.parse_args()
    tokenizer = SimpleTokenizer()
    texts = read_captions(options.captions, options.column)
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        pipeline = str(Path(scratch) / "pipeline")
        subprocess.run([options.millrace, "init", "--preset", "tiny", "--out", pipeline], check=True, capture_output=True)
        for name, change in VARIANTS.items():
            generator = random.Random(420)
            captions = [change(text, generator) for text in texts]
            expected = tokenizer(captions).tolist()
            wrong = [i for i, ids in enumerate(tokenize(options.millrace, pipeline, captions)) if ids != expected[i]]
            repaired = {i for i, text in enumerate(captions) if ftfy.fix_text(text) != ftfy.fix_text(text, fix_encoding=False)}
            others = [i for i in wrong if i not in repaired]
            print(f"{name:26} {len(captions)} captions, {len(wrong)} differ, {len(repaired)} with mojibake that ftfy repairs, "
                  f"{len(others)} differ for another reason")
            for i in others[:5]:
                print("   ", repr(captions[i]))
            failures += len(others)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
