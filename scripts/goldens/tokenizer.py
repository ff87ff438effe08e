#!/usr/bin/env python3
"""Goldens of the CLIP tokenizer: odd captions and their ids by transformers' CLIPTokenizer, for SD 1's and SD 2's folders.

Writes tests/golden/tokenizer/expected.json; ids without padding (the pad id stands beside them).
    .venv-goldens/bin/python scripts/goldens/tokenizer.py
"""
import gzip
import json
import random
import tempfile
from pathlib import Path

import open_clip
import tokenizers
import transformers

OUT = Path(__file__).resolve().parents[2] / "tests/golden/tokenizer"
BPE = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
START, END = "<|startoftext|>", "<|endoftext|>"

PLAIN = """a photo of a cat
A Painting of a FOX, oil on canvas, highly detailed, 8k!
the woman's hat isn't blue; they've said we'll see, I'm sure he'd go, you're it
THE DOG'S BONE 'S 'T 'RE 'VE 'M 'LL 'D
rock 'n' roll's ''quoted'' '' ' 'sx 'tis 'dx'mm
12345 1 22 333 4,444.55 x2y3z 2nd 50% 1/2 3rd-floor
hello   world \t tabs  and   spaces
!  !! !!! a!b !a b! hello!world ?! !?
wow!!! #hashtag @user http://example.com/path?a=1&b=2 e-mail@example.org
&amp; &lt;b&gt; &quot;x&quot; &#39;y&#39; &nbsp; &eacute; &amp;amp;
<b>bold</b> <br/> <div class="x">text</div>
C++ & C# {code} [x] (y) ~ ^ ` | \\ / _ under_score snake_case_word
under__score --- ... .. . , ;; :: == != <= >= <- -> => <|>
café naïve résumé Ångström coöperate façade jalapeño
ÀÉÎÕÜ ŠŽČ ŁÓDŹ ØRSTED ÞÓR ẞ ß STRASSE straße
ﬁne ﬂow ﬀ ﬃ ligatures Ａｆｕｌｌｗｉｄｔｈ １２３ ｘ
“curly” ‘quotes’ it’s don’t – en — em … ellipsis
№ ™ © ® ° ± × ÷ ¼ ½ ¾ ² ³ ¹ µ ª º
Ⅷ ⅷ ↁ ① ⑳ ㊿ 〇 一二三 ௧௨ ४५ ٣٤ 𝟘𝟙
İstanbul ISTANBUL ıI iİ İ İİ
ΣΊΣΥΦΟΣ ΟΔΥΣΣΕΥΣ ς σ Σ ΑΣ ΑΣ. Σ'
Привет, мир! МОСКВА ёлка Ёлка й й
你好，世界。 中文字幕 漢字 ㄅㄆㄇ
こんにちは カタカナ ｶﾀｶﾅ がぎぐ がぎ 日本語テスト
안녕하세요 한국어 한국
שלום עולם עברית וְאָהַבְתָּ
مرحبا بالعالم العربية ـ السَّلَامُ
नमस्ते हिन्दी क्षत्रिय तमिल் தமிழ் ไทย ภาษาไทย
👍 😀😃😄 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☕️ 👍🏽 1️⃣ #️⃣
a😀b c😀 😀d 😀!😀
é é ñ ñ Å Å Å ộ ộ q̣̇ q̣̇
Z̷̢̛a̵l̶g̷o̸ t̸̡e̵x̶t̷
zero\u200bwidth joiner\u200d non\u200cjoin \ufeffbom word\u2060joiner soft\u00adhyphen
nbsp\u00a0here thin\u2009space em\u2003space ideographic\u3000space narrow\u202fnbsp ogham\u1680space mmsp\u205fx
line\u2028sep para\u2029sep next\u0085line vt\u000bff\u000cx
ctrl\u0001\u0002\u001f\u007f chars\u0080\u009f \u001c \u001d
\u202eright to left override\u202c \u2066isolate\u2069 \u200fmark
private \ue000\uf8ff \U000f0000 nonchar \ufffe\uffff replacement \ufffd
<|startoftext|> <|endoftext|> a<|endoftext|>b <|startoftext|><|endoftext|>
<|STARTOFTEXT|> <|EndOfText|> x<|ENDOFTEXT|>y <| endoftext |> <|endoftext|
!!<|endoftext|>!! ,,<|startoftext|>.. <<|endoftext|>> <|endoftext|>'s
<start_of_text> <end_of_text> [CLS] <s> </s> <pad> </w> a</w>
ＳＴＡＲＴ ǅ ǆ Ǆ Ǉ ʻokina ʼn ŉ ǰ ΐ
K kelvin Å angstrom Ω ohm ſ long s ﬅ
ᏣᎳᎩ ꮳꮃꭹ Ა ა ⴀ Ⴀ 𐐀𐐨 𞤀𞤢
ᾳ ᾼ ΑΙ ᾈ ᾀ ῼ
\u0301leading combining a\u0301\u0323 \u0344 \u0958 \u2126 \u212b \uf900 \U0002f800
supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbb ababababababababab hahahahahahahahahaha
asdfghjkl qwertyuiop zxcvbnm xqzjkvw
lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua
IMG_20190312_123456.jpg DSC00012 (1).JPG 1920x1080 4K UHD f/1.8 ISO100 1/250s
$19.99 €20 £5 ¥100 ₹ ₿ 20% off!!! BUY NOW >>> click here <<<
10:30am 2021-03-04 (555) 123-4567 1,000,000 3.14159 1e-5 0x1F
Mr. & Mrs. O'Neil-Smith's dog's toys' box, y'all'd've
l'été d'accord qu'il aujourd'hui c'est s'il
don't DON'T Don'T won’t ’s ’S 'S's'S
dvd'll'll 're're 've've'd'd'm'm
"""


def captions():
    made = ["", " ", "   ", "\n", "\t\n ", "!", "!!", " ! ", "'", "'s", "a", "A", "1", "\u00a0", "\u200b", "é", "İ", "😀", "\u0301"]
    made += [line for line in PLAIN.split("\n") if line]
    made += ["word " * 90, "x" * 500, "!" * 100, "1" * 100, "猫" * 120, "é" * 90, "😀" * 60, "a!" * 60, "Σ" * 80,
             "a b " * 36 + "tail", "cat " * 74 + "end", "cat " * 75 + "cut", "cat " * 74 + "extraordinarily!",
             "cat " * 73 + "<|endoftext|> x", "\n".join(["line"] * 20), "\t".join("abc"), "a\r\nb\r\rc", "a  b", " lead", "trail ",
             "\U0001d400\U0001d401 \U0001d7d8 \U0001f1e6", "ä" + "\u0308" * 30, "\u1100\u1161\u11a8", "\u0915\u093c", "e\u0301!e\u0301"]
    generator = random.Random(420)
    pieces = [piece for line in PLAIN.split("\n") for piece in line.split(" ") if piece]
    for _ in range(170):
        separators = generator.choices([" ", "", "  ", "\u3000", "!", ", ", "'", "\u200d"], weights=[12, 3, 1, 1, 1, 2, 1, 1], k=12)
        made.append("".join(piece + space for piece, space in zip(generator.choices(pieces, k=generator.randint(2, 12)), separators)))
    for _ in range(80):
        ranges = [(0x20, 0x7f), (0xa1, 0x250), (0x370, 0x590), (0x590, 0x780), (0x900, 0xe00), (0x1e00, 0x2070), (0x20a0, 0x2400),
                  (0x3000, 0x3200), (0x4e00, 0x5000), (0xac00, 0xae00), (0x1f300, 0x1f650), (0x300, 0x340)]
        low, high = generator.choice(ranges)
        made.append("".join(chr(generator.choice([generator.randrange(low, high), generator.randrange(0x20, 0x7f), 0x20]))
                            for _ in range(generator.randint(1, 40))))
    return made


def byte_symbols():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def write_folder(folder, pad):
    """The files of the hub's folders; the C++ tests make theirs with write_clip_tokenizer_folder."""
    merges = gzip.open(BPE).read().decode().split("\n")[1:49152 - 256 - 2 + 1]
    symbols = byte_symbols()
    tokens = symbols + [s + "</w>" for s in symbols] + ["".join(merge.split()) for merge in merges] + [START, END]
    added = lambda text: {"content": text, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    typed = lambda text: {"__type": "AddedToken", **added(text)}
    config = {"add_prefix_space": False, "bos_token": typed(START), "do_lower_case": True, "eos_token": typed(END),
              "errors": "replace", "model_max_length": 77, "pad_token": END, "tokenizer_class": "CLIPTokenizer",
              "unk_token": typed(END)}
    special = {"bos_token": added(START), "eos_token": added(END), "pad_token": pad, "unk_token": added(END)}
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2))


def encode_all(pad):
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name), pad)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(name)
        encode = lambda text: tokenizer(text, padding="max_length", max_length=77, truncation=True)
        ids = []
        for caption in captions():
            encoded = encode(caption)
            ids.append(encoded["input_ids"][:sum(encoded["attention_mask"])])
        return {"pad_token": pad, "pad_id": tokenizer.pad_token_id, "ids": ids}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {"versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
                "captions": captions(), "folders": {"sd1": encode_all(END), "sd2": encode_all("!")}}
    (OUT / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
