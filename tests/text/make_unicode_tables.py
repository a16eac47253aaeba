#!/usr/bin/env python3
"""Writes levin/text/unicode/unicode_data.cpp: what the Python package `tokenizers` says of every code point.

The package joins tables of several Unicode versions (Rust's, Oniguruma's, those of crates). Asking the package itself gives
the same answers as it gives. Scripts and grapheme breaks come from the package `regex`, combining classes from `unicodedata2`.

    pip install tokenizers regex unicodedata2
    tests/text/make_unicode_tables.py > levin/text/unicode/unicode_data.cpp
"""
import sys

import regex
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
ALL = "".join(map(chr, POINTS))
CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
BREAKS = "Other CR LF Control Extend ZWJ Regional_Indicator Prepend SpacingMark L V T LV LVT".split()
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-"


def matched(pattern):
    """The code points that a pattern of Split matches."""
    pieces = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed").pre_tokenize_str(ALL)
    rest = set()
    for _, (begin, end) in pieces:
        rest.update(POINTS[begin:end])
    return set(POINTS) - rest


def changed(normalizer, prefix=""):
    """{code point: text} where a normalizer changes it."""
    found = {}
    for point in POINTS:
        text = prefix + chr(point)
        out = normalizer.normalize_str(text)
        if out != text:
            found[point] = out[len(prefix):]
    return found


def number(value):
    """Six bits a character, the low ones first; 32 more in all but the last."""
    out = ""
    while value >= 32:
        out += DIGITS[32 + value % 32]
        value //= 32
    return out + DIGITS[value]


def literal(name, text, comment):
    print(f"\n// {comment}")
    print(f"const char* const {name} =")
    lines = [text[i:i + 112] for i in range(0, len(text), 112)] or [""]
    for i, line in enumerate(lines):
        print(f'    "{line}"' + (";" if i + 1 == len(lines) else ""))


def mapping(table):
    """Code point (delta), length, code points, for each."""
    out, last = "", 0
    for point in sorted(table):
        out += number(point - last) + number(len(table[point])) + "".join(number(ord(c)) for c in table[point])
        last = point
    return out


def main():
    category = {}
    for i, name in enumerate(CATEGORIES):
        if name not in ("Cn", "Cs"):
            for point in matched(rf"\p{{{name}}}"):
                category[point] = i
    space, word, alphabetic = matched(r"\s"), matched(r"\w"), matched("[[:alpha:]]")
    number_like = {p for p in POINTS if len(pre_tokenizers.Digits(True).pre_tokenize_str("aa" + chr(p))) == 2}
    rust_word = {p for p in POINTS if len(pre_tokenizers.Whitespace().pre_tokenize_str("a" + chr(p) + "a")) == 1}
    punctuation = {p for p in POINTS if len(pre_tokenizers.Punctuation().pre_tokenize_str("aa" + chr(p))) == 2}
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    control = {p for p, text in changed(clean, "a").items() if text == ""}
    bare = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    canonical = changed(normalizers.NFD())
    accents = {p for p, text in changed(bare, "a").items() if text == "" and p not in canonical}
    marks = {p for p, text in changed(normalizers.StripAccents(), "a").items() if text == ""}
    breaks = {}
    for i, name in enumerate(BREAKS[1:], 1):
        for found in regex.finditer(rf"\p{{Grapheme_Cluster_Break={name}}}", ALL):
            breaks[ord(found[0])] = i
    pictures = {ord(c) for c in regex.findall(r"\p{Extended_Pictographic}", ALL)}

    names = ["Any"]
    scripts = {}
    for name in SCRIPTS:
        names.append(name)
        for found in regex.finditer(rf"\p{{Script={name}}}+", ALL):
            for c in found[0]:
                scripts[ord(c)] = len(names) - 1

    values, ranges, last, length = {}, "", None, 0

    def close():
        nonlocal ranges
        ranges += number(length) + number(values.setdefault(last, len(values)))

    for point in range(0x110000):
        value = (category.get(point, 0) | breaks.get(point, 0) << 5 | (point in space) << 9 | (point in word) << 10
                 | (point in rust_word) << 11 | (point in number_like) << 12 | (point in punctuation) << 13
                 | (point in control) << 14 | (point in accents) << 15 | (point in marks) << 16
                 | (point in pictures) << 17 | scripts.get(point, 0) << 18 | (point in alphabetic) << 26)
        if value != last and last is not None:
            close()
            length = 0
        last = value
        length += 1
    close()

    hangul = range(0xAC00, 0xAC00 + 11172)
    canonical = {p: text for p, text in canonical.items() if p not in hangul}
    compatible = {p: text for p, text in changed(normalizers.NFKD()).items() if p not in hangul and canonical.get(p) != text}
    nfc = normalizers.NFC()
    pairs = {}
    for point in canonical:
        one = unicodedata2.decomposition(chr(point))
        parts = [] if one.startswith("<") else [int(p, 16) for p in one.split()]
        if len(parts) == 2 and nfc.normalize_str(chr(point)) == chr(point):
            pairs[point] = "".join(map(chr, parts))
    lower = changed(normalizers.Lowercase())
    classes, last, at = "", 0, 0
    for point in POINTS:
        value = unicodedata2.combining(chr(point))
        if value:
            classes += number(point - at) + number(value)
            at = point
    fold = {p: chr(p).casefold() for p in POINTS if len(chr(p).casefold()) == 1}
    fold = {p: text for p, text in fold.items() if text != lower.get(p, chr(p))}

    print("// Made by tests/text/make_unicode_tables.py: see there. Numbers are written with 64 characters, the low bits first.")
    print('#include "levin/text/unicode/unicode_data.h"\n\nnamespace levin::text::detail {')
    literal("kPropertyValues", "".join(number(v) for v in values), "The distinct sets of properties.")
    literal("kPropertyRanges", ranges, "Code points from 0 on: how many, and which set.")
    literal("kScriptNames", " ".join(names), "Names of scripts, by number.")
    literal("kCanonical", mapping(canonical), "Full canonical decompositions.")
    literal("kCompatible", mapping(compatible), "Full compatibility decompositions, where they differ.")
    literal("kCompositions", mapping(pairs), "Code points that two others compose to.")
    literal("kCombining", classes, "Combining classes other than 0.")
    literal("kLower", mapping(lower), "Lower case.")
    literal("kFold", mapping(fold), "Simple case folding, where it is not lower case.")
    print("\n}  // namespace levin::text::detail")


SCRIPTS = """Common Inherited Latin Greek Cyrillic Armenian Hebrew Arabic Syriac Thaana Devanagari Bengali Gurmukhi Gujarati Oriya Tamil
Telugu Kannada Malayalam Sinhala Thai Lao Tibetan Myanmar Georgian Hangul Ethiopic Cherokee Canadian_Aboriginal Ogham Runic Khmer
Mongolian Hiragana Katakana Bopomofo Han Yi Old_Italic Gothic Deseret Tagalog Hanunoo Buhid Tagbanwa Limbu Tai_Le Linear_B Ugaritic
Shavian Osmanya Cypriot Braille Buginese Coptic New_Tai_Lue Glagolitic Tifinagh Syloti_Nagri Old_Persian Kharoshthi Balinese
Cuneiform Phoenician Phags_Pa Nko Sundanese Lepcha Ol_Chiki Vai Saurashtra Kayah_Li Rejang Lycian Carian Lydian Cham Tai_Tham
Tai_Viet Avestan Egyptian_Hieroglyphs Samaritan Lisu Bamum Javanese Meetei_Mayek Imperial_Aramaic Old_South_Arabian
Inscriptional_Parthian Inscriptional_Pahlavi Old_Turkic Kaithi Batak Brahmi Mandaic Chakma Meroitic_Cursive Meroitic_Hieroglyphs
Miao Sharada Sora_Sompeng Takri Caucasian_Albanian Bassa_Vah Duployan Elbasan Grantha Pahawh_Hmong Khojki Linear_A Mahajani
Manichaean Mende_Kikakui Modi Mro Old_North_Arabian Nabataean Palmyrene Pau_Cin_Hau Old_Permic Psalter_Pahlavi Siddham Khudawadi
Tirhuta Warang_Citi Ahom Anatolian_Hieroglyphs Hatran Multani Old_Hungarian SignWriting Adlam Bhaiksuki Marchen Newa Osage Tangut""".split()

if __name__ == "__main__":
    sys.exit(main())
