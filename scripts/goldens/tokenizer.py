#!/usr/bin/env python3
"""Goldens of the CLIP tokenizer: odd captions and their ids by transformers' CLIPTokenizer, for SD 1's and SD 2's folders
and for folders with added tokens, and by open_clip's SimpleTokenizer.

Writes tests/golden/tokenizer/expected.json (ids without padding, the pad id stands beside them), open_clip.json (ids
without padding, which is 0; "mojibake" = captions that ftfy also decodes anew, which millrace does not) and added.json
(folders with added tokens: their files but for the vocabulary, and the ids without padding).
    .venv-goldens/bin/python scripts/goldens/tokenizer.py
"""
import gzip
import html.entities
import json
import random
import tempfile
import unicodedata
from pathlib import Path

import ftfy
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

CLEANED = """Tom &amp; Jerry&#39;s Dog&rsquo;s &quot;Bone&quot;
&amp;amp;amp;amp; &amp;lt;b&amp;gt; &amp;amp;eacute; &amp;#233; &amp;amp;#x27;
&AMP &amp &ampx &lt &ltx &gt; &copy2020 &reg &notit; &not &notin; &para &parallel; &sect1
&EACUTE; &NTILDE; &SZLIG; &FFILIG; &HEARTS; &HELLIP; &nTILDE; &QUOT; &APOS; &FRAC12; &GTDOT; &LTX; &AMPX;
&#65; &#x41; &#X41; &#0065 &#x00041; &#; &#x; &# &#xg; &#12ab; &#59; &#38; &#38;amp; &#0; &#13; &#10; &#9;
&#128; &#130; &#145;x&#146; &#147;y&#148; &#150; &#151; &#153; &#129; &#141; &#159; &#1; &#11; &#28; &#127; &#160;
&#55296; &#xDFFF; &#1114111; &#1114112; &#99999999999999999999; &#xFFFFFFFFFFF; &#xFDD0; &#xFFFE; &#128512; &#x1F600;
&CounterClockwiseContourIntegral; &DoubleLongLeftRightArrow; &ClockwiseContourIntegral; &ThickSpace; &fjlig; &NotEqualTilde;
&nosuchname; &eacute &Eacute; &EaCute; &frac12 &frac1; &sup2x &there4; &there4 &zwj; &zwnj; &shy; &nbsp;&ensp;&emsp;x
&amp;&amp;&amp;amp;&& & && &&amp; &;amp; &amp ;; a&b a&ampb AT&T R&D Q&A &b; &amp;quot;twice&amp;quot;
<b>&eacute;&amp;eacute;</b> &lt;b&gt;&rsquo; a < b &amp; c &ldquo;q&rdquo;
first &eacute;&rsquo;\\nsecond < &eacute;&rsquo;\\nthird &eacute;&rsquo;
“curly” ‘single’ ‚low‛ „low‟ «angle» ‹single› ′prime″ ʼokina ʻokina ´acute `grave
it’s don’t ‘s ’S ’re ’VE rock ’n’ roll’s 90’s
ﬁne ﬂow ﬀ ﬃ ﬄ ﬅ ﬆ ŉ Ĳ ĳ Ǳ ǲ ǳ Ǆ ǅ ǆ Ǉ ǈ ǉ Ǌ ǋ ǌ æ œ Æ Œ
Ｆｕｌｌ　Ｗｉｄｔｈ！？ （１２３） ＂ｑ＂ ＆ａｍｐ； ＜ｂ＞ ～ ￥ ￦ ￠ ￡ ￢ ￣ ￤
ﾊﾝｶｸ ｶﾞｷﾞ ﾊﾟﾋﾟ ｱｲｳｴｵ ﾟ ﾞ ｡｢｣､･ ﾡﾢﾣ ￩￪￫￬￭￮
\x1b[31mred\x1b[0m \x1b[1;32;40mx \x1b[mz \x1bq \x1b[ \x1b[31 \x1b
ctrl\x00nul \x01\x02 a\x08b vt\x0bvt ff\x0cff fs\x1cgs\x1drs\x1eus\x1f del\x7f
c1 \x80euro \x85 \x92s \x93q\x94 \x96 \x97 \x99 \x81\x8d\x8f\x90\x9d
bom\ufeffbom \u206a\u206f interlinear\ufff9x\ufffa\ufffb object\ufffc nonchar\ufffe
crlf\r\\ncr\rls\u2028ps\u2029nel\u0085end \x0b\x0c
İSTANBUL ΣΊΣΥΦΟΣ ΟΔΥΣΣΕΥΣ ΑΣ. ΑΣ Σ Σ' aΣ aΣb ΑΣ\u0301 Σ\u0301Σ ÀÉ ẞ ǅ ᾈ ᾼ Ⅷ ℵ K Å Ω
'ſ 'ſx ſ 'S 'ſt <ſtart_of_text> a\u0345b \u0345 \u03b1\u0345
<start_of_text> <end_of_text> <START_OF_TEXT> <End_Of_Text>x a<start_of_text>b !<end_of_text> <end_of_text>'s <end_of_text><end_of_text>
<|startoftext|> <|endoftext|> <|STARTOFTEXT|>x <start_of_text <end_of_text>> <<start_of_text>> &lt;end_of_text&gt;
! !! !!! !!!! !!!!! a! b!! !c! !'s '!' !1 ?! &excl; ！ ！！
e\u0301 E\u0301 a\u0323\u0301 \u1100\u1161\u11a8 \u212b \u2126 \uf900 \u0958 \u0344 o\u0308\u0304
naïve café – résumé… “Ünïcödé” ½ cup, 5 °C, 3 × 4, №5, 100 €, £5, ¥, © 2020 Company™ ®
😀 👩‍👩‍👧 🏳️‍🌈 🇩🇪 ❤️ 1️⃣ ✔️ ★★★★☆ ♥ → • · ▲ ◄ █ ░
مرحبا بالعالم ١٢٣ ـ 你好，世界。 こんにちは。 안녕하세요 ไทย हिन्दी עברית Ελληνικά Русский
\u200b\u200czero\u200dwidth\u200e\u200f\u202a\u202e \u2060\u00ad \u180e \u3164 \u115f
1,234.56 ½ ² ³ ① ⅳ 一 ௧ 𝟘 ٣ 1st 2nd 1980's '90s 10:30pm 50% $5.00 #1 @2x
Stock Photo | 4K – Wallpaper: “Sunset @ Sea” (1920×1080) &#8211; Free&nbsp;Download &raquo; Site.com
&lt;p&gt;Men&#8217;s &#38; Women&#8217;s T-Shirt&lt;/p&gt; &#x2013; &pound;9.99 &euro;12 &trade;
"""
MOJIBAKE = """sÃ³ el cafÃ© estÃ¡ cerrado
Itâ€™s a dogâ€™s life â€“ really â€œtrulyâ€\x9d
Beyonc\u00c3\u00a9 &Atilde;&copy; l&Atilde;&copy;gende
ÐŸÑ€Ð¸Ð²ÐµÑ‚ Ð¼Ð¸Ñ€
voilÃ  le travail, dÃ©jÃ\xa0 vu
Ã¼ber Â£5 Â© 2020 Â« Â» Â½
å¤ªé™½ ã“ã‚“ã«ã¡ã¯
Ã¢â‚¬Å“doubleÃ¢â‚¬\x9d
naÃ¯ve rÃ©sumÃ© ðŸ˜€ â¤
â€œ like this â€�
"""


def cleaned_captions():
    """What open_clip's cleaning meets: captions() and more, all of HTML's names, random mixtures."""
    lines = lambda text: [line.replace("\\n", "\n") for line in text.split("\n") if line]
    made = captions() + lines(CLEANED) + lines(MOJIBAKE)
    names = sorted(html.entities.html5)
    made += [" ".join("&" + name for name in names[i::75]) for i in range(75)]
    made += ["&" + "amp;" * n + "lt;" for n in (1, 2, 3, 5, 9)] + ["&amp;" * 40, "x\n" * 50, "“" * 90, "Ａ" * 90, "ﬁ" * 60]
    generator = random.Random(421)
    pieces = [piece for line in lines(CLEANED) for piece in line.split(" ") if piece]
    for _ in range(120):
        separators = generator.choices([" ", "", "  ", "\u3000", "\n", "&amp;", "'", "\u00a0"], k=12)
        made.append("".join(piece + space for piece, space in zip(generator.choices(pieces, k=generator.randint(2, 10)), separators)))
    # Characters that a later Unicode has made letters would make the ids depend on versions.
    is_known = lambda c: unicodedata.category(c) != "Cn" or c in "\ufffe\uffff"
    return [text for text in made if all(map(is_known, text))]


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
    # Marks younger than Unicode 9, which tokenizers neither puts in order nor composes, among older ones.
    marks = "\u1df6\u1df7\u1dfb\u08d3\u0eba\u1ac1\u1ac5\u0c3c\U00010eab\U00011d42\U0001e130" + "\u0301\u0316\u0327\u0323\u093c"
    made += ["\U00011935\U00011930", "e\u1df6\u0301 e\u0301\u1df6", "x" + "\u1df6\u0327\u0301" * 40]
    made += ["".join(generator.choice("aeox \u0915") + "".join(generator.choices(marks, k=generator.randint(0, 4)))
                     for _ in range(generator.randint(1, 8))) for _ in range(40)]
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


ADDED_CAPTIONS = ["a photo of <cat-toy>", "A <CAT-TOY>!", "x<cat-toy>y <cat-toy><cat-toy>", "<cat-toy", "<cat-toy_1> and <cat-toy>",
                  "Sks-Dog sks-dog SKS-DOG", "  <Cat-Toy>  <|endoftext|> sks-dog's", "<Pad> <pad> <PAD>", "two  words, TWO WORDS",
                  "cat cats CAT, a caf\u00e9 CAFE\u0301", "<|STARTOFTEXT|> ! !!", "<cat-toy> " * 90, ""]


def added_token(text, **flags):
    return {"content": text, "lstrip": False, "rstrip": False, "single_word": False, **flags}


def texts_alone(folder, ids, pad=END, **config):
    """As slow tokenizers saved a folder: added_tokens.json has no flags."""
    write_folder(folder, pad)
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    change(folder / "tokenizer_config.json", config)


def listed_in_config(folder, tokens, pad=END, **config):
    """As transformers 4 saves it; special_tokens_map.json is not read then."""
    write_folder(folder, "!")
    named = {"49406": added_token(START, normalized=True, special=True), "49407": added_token(END, normalized=True, special=True)}
    change(folder / "tokenizer_config.json", {"added_tokens_decoder": {**tokens, **named}, "pad_token": pad, **config})


def saved_anew(folder, tokens):
    """As transformers 5 saves it: tokenizer.json holds the vocabulary and the added tokens."""
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name), END)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(name)
    tokenizer.add_tokens(tokens)
    tokenizer.save_pretrained(folder)


def change(file, keys):
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def added_folders():
    plain, raw = dict(normalized=True, special=False), dict(normalized=False, special=True)
    toys = {"<cat-toy_1>": 49409, "Sks-Dog": 49410, "<cat-toy>": 49408}
    return {
        "texts alone": lambda f: texts_alone(f, toys),
        "texts alone, some of them named": lambda f: texts_alone(
            f, {**toys, "<pad>": 49411, END: 49407}, pad=added_token("<pad>", normalized=True), additional_special_tokens=["Sks-Dog"]),
        "listed in the config": lambda f: listed_in_config(
            f, {"49410": added_token("Sks-Dog", **raw), "49409": added_token("<cat-toy_1>", **plain),
                "49408": added_token("<cat-toy>", **plain)}),
        "listed in the config with a pad token": lambda f: listed_in_config(f, {"49408": added_token("<pad>", **raw)}, pad="<pad>"),
        "listed beside texts alone": lambda f: (texts_alone(f, toys), change(f / "tokenizer_config.json", {"added_tokens_decoder": {}})),
        "saved anew": lambda f: saved_anew(f, list(toys)),
        "saved anew beside texts alone": lambda f: (
            saved_anew(f, ["<cat-toy>"]), (f / "added_tokens.json").write_text(json.dumps({"<cat-toy_1>": 49408, "Sks-Dog": 49409}))),
        "with gaps": lambda f: texts_alone(f, {"<cat-toy>": 60000, "Sks-Dog": 100, "<cat-toy_1>": 49409}),
        "with gaps in the config": lambda f: listed_in_config(
            f, {"100000": added_token("<cat-toy>", **plain), "49500": added_token("<cat-toy_1>", **raw)}),
        "words, and a text twice": lambda f: listed_in_config(
            f, {"49408": added_token("two words", **raw), "49409": added_token("two words", **plain), "49411": added_token("cat", **plain),
                "49412": added_token("Caf\u00e9", **plain), "49413": added_token("", **plain)}),
        "without flags": lambda f: listed_in_config(
            f, {"49408": added_token("<cat-toy>", special=True), "49409": added_token("Sks-Dog", special=False)}),
        "roles in the config alone": lambda f: (
            texts_alone(f, {"<cat-toy>": 49408, END: 49407}), (f / "special_tokens_map.json").unlink()),
        "roles without flags": lambda f: (
            texts_alone(f, {"<cat-toy>": 49408}),
            change(f / "special_tokens_map.json", {"bos_token": added_token(START), "pad_token": added_token("!")})),
    }


def encode_added(make):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(name)
        ids = []
        for caption in ADDED_CAPTIONS:
            encoded = tokenizer(caption, padding="max_length", max_length=77, truncation=True)
            ids.append(encoded["input_ids"][:sum(encoded["attention_mask"])])
        files = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json")) if file.name != "vocab.json"}
        if "tokenizer.json" in files:  # which holds the vocabulary too
            files["tokenizer.json"] = {"added_tokens": files["tokenizer.json"]["added_tokens"]}
        return {"files": files, "size": len(tokenizer), "pad_id": tokenizer.pad_token_id, "ids": ids}


def added_golden():
    return {"versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}, "captions": ADDED_CAPTIONS,
            "folders": {name: encode_added(make) for name, make in added_folders().items()}}


def open_clip_golden():
    tokenizer = open_clip.tokenizer.SimpleTokenizer()
    plain = {"captions": [], "ids": []}
    mojibake = {"captions": [], "ids": []}
    for caption in cleaned_captions():
        ids = tokenizer(caption)[0].tolist()
        part = plain if ftfy.fix_text(caption) == ftfy.fix_text(caption, fix_encoding=False) else mojibake
        part["captions"].append(caption)
        part["ids"].append(ids[:len(ids) - ids[::-1].index(tokenizer.eot_token_id)])
    return {"versions": {"open_clip_torch": open_clip.__version__, "ftfy": ftfy.__version__}, **plain, "mojibake": mojibake}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {"versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
                "captions": captions(), "folders": {"sd1": encode_all(END), "sd2": encode_all("!")}}
    (OUT / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    (OUT / "open_clip.json").write_text(json.dumps(open_clip_golden(), separators=(",", ":")) + "\n")
    (OUT / "added.json").write_text(json.dumps(added_golden(), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
