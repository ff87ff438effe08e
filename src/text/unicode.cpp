#include "unicode.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/core/error.h"

namespace millrace {

namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

CharacterClass class_of(UChar32 c) {
  if (u_isUWhiteSpace(c)) return CharacterClass::space;
  const std::uint32_t category = U_GET_GC_MASK(c);
  if (category & U_GC_L_MASK) return CharacterClass::letter;
  if (category & U_GC_N_MASK) return CharacterClass::number;
  return CharacterClass::other;
}

// Captions are mostly ASCII, so its classes and lower-case letters are at hand.
struct AsciiTables {
  std::array<CharacterClass, 128> classes;
  std::array<char, 128> lower;
  AsciiTables() {
    for (int c = 0; c < 128; ++c) {
      classes[c] = class_of(c);
      lower[c] = static_cast<char>(u_tolower(c));
    }
  }
};

const AsciiTables& ascii() {
  static const AsciiTables tables;
  return tables;
}

// Collects characters, collapsing white space and lowering case.
class CaptionWriter {
 public:
  void add(UChar32 c) {
    if (c < 128) return add_ascii(static_cast<unsigned char>(c));
    if (class_of(c) == CharacterClass::space) return add_space();
    if (c == 0x130) return append(u"i\u0307");  // the one letter whose lower case is two characters in every language
    const UChar32 lower = u_tolower(c);
    std::uint8_t bytes[U8_MAX_LENGTH];
    int length = 0;
    U8_APPEND_UNSAFE(bytes, length, lower);
    text_.append(reinterpret_cast<const char*>(bytes), length);
    after_space_ = false;
  }
  void add_ascii(unsigned char c) {
    if (ascii().classes[c] == CharacterClass::space) return add_space();
    text_ += ascii().lower[c];
    after_space_ = false;
  }
  void reserve(std::size_t bytes) { text_.reserve(bytes); }
  std::string take() { return std::move(text_); }

 private:
  void append(std::u16string_view characters) {
    text_ += to_utf8({characters.data(), static_cast<int>(characters.size())});
    after_space_ = false;
  }
  void add_space() {
    if (!after_space_) text_ += ' ';
    after_space_ = true;
  }

  std::string text_;
  bool after_space_ = false;
};

using Normalizer = const icu::Normalizer2* (*)(UErrorCode&);

// Only of the characters `among`, where they are given.
icu::UnicodeString normalize(const icu::UnicodeString& text, Normalizer get_normalizer,
                             const icu::UnicodeSet* among = nullptr) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const normalizer = get_normalizer(status);
  ensure(U_SUCCESS(status), "ICU has its normalization data");
  icu::UnicodeString normalized;
  if (among)
    icu::FilteredNormalizer2(*normalizer, *among).normalize(text, normalized, status);
  else
    normalizer->normalize(text, normalized, status);
  ensure(U_SUCCESS(status), "ICU normalizes any text");
  return normalized;
}

// Each character's canonical decomposition, not yet in canonical order.
icu::UnicodeString take_apart(const icu::UnicodeString& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const canonical = icu::Normalizer2::getNFDInstance(status);
  ensure(U_SUCCESS(status), "ICU has its normalization data");
  icu::UnicodeString apart, parts;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 c = text.char32At(i);
    canonical->getDecomposition(c, parts) ? apart.append(parts) : apart.append(c);
  }
  return apart;
}

// What transformers' tokenizers compose: their tables are those of Unicode 9, and leave younger characters alone.
const icu::UnicodeSet& unicode_9() {
  static const icu::UnicodeSet characters = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(u"[:age=9.0:]", status);
    ensure(U_SUCCESS(status), "ICU has its characters' ages");
    set.freeze();  // looks characters up faster
    return set;
  }();
  return characters;
}

// Marks that stand behind a letter, such as accents, or that begin with one when they are taken apart.
bool is_mark(UChar32 c, const icu::UnicodeSet* among) {
  return c >= 0x300 && u_getIntPropertyValue(c, UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0 &&
         (!among || among->contains(c));
}

// Taken apart and in canonical order.
icu::UnicodeString sort_marks(const icu::UnicodeString& marks) {
  const icu::UnicodeString apart = take_apart(marks);
  std::vector<UChar32> sorted;
  for (std::int32_t i = 0; i < apart.length(); i = apart.moveIndex32(i, 1)) sorted.push_back(apart.char32At(i));
  std::ranges::stable_sort(sorted, {}, u_getCombiningClass);
  return icu::UnicodeString::fromUTF32(sorted.data(), static_cast<std::int32_t>(sorted.size()));
}

// NOTE [Endless accents]: Unicode orders the marks behind a letter by their classes, and ICU does so by insertion:
// minutes for a caption of half a million. A long run is handed to it sorted, which is the same text (UAX 15, canonical
// equivalence), so the composed text is the same too.
icu::UnicodeString with_sorted_marks(const icu::UnicodeString& text, const icu::UnicodeSet* among = nullptr) {
  constexpr std::int32_t long_run = 64;
  icu::UnicodeString result;
  std::int32_t copied = 0;
  for (std::int32_t i = 0; i < text.length();) {
    std::int32_t end = i;
    while (end < text.length() && is_mark(text.char32At(end), among)) end = text.moveIndex32(end, 1);
    if (end - i >= long_run) {
      result.append(text, copied, i - copied).append(sort_marks(text.tempSubStringBetween(i, end)));
      copied = end;
    }
    i = end < text.length() ? text.moveIndex32(end, 1) : end;
  }
  return copied == 0 ? text : result.append(text, copied, text.length() - copied);
}

icu::UnicodeString compose_of_unicode_9(const icu::UnicodeString& text) {
  return normalize(with_sorted_marks(text, &unicode_9()), icu::Normalizer2::getNFCInstance, &unicode_9());
}

}  // namespace

icu::UnicodeString from_utf8(std::string_view utf8) {
  return icu::UnicodeString::fromUTF8({utf8.data(), static_cast<std::int32_t>(utf8.size())});
}

std::string to_utf8(const icu::UnicodeString& text) {
  std::string utf8;
  return text.toUTF8String(utf8);
}

std::string normalize_caption(std::string_view utf8) {
  CaptionWriter writer;
  writer.reserve(utf8.size());
  if (is_ascii(utf8)) {
    for (char c : utf8) writer.add_ascii(static_cast<unsigned char>(c));
    return writer.take();
  }
  const icu::UnicodeString text = compose_of_unicode_9(from_utf8(utf8));
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) writer.add(text.char32At(i));
  return writer.take();
}

icu::UnicodeString compose(const icu::UnicodeString& text) {
  return normalize(with_sorted_marks(text), icu::Normalizer2::getNFCInstance);
}

icu::UnicodeString compatible_form(UChar32 c) {
  return normalize(icu::UnicodeString(c), icu::Normalizer2::getNFKCInstance);
}

// NOTE [The iota below]: its case folding is a letter, so open_clip's pattern, which ignores case, finds it neither a
// letter nor anything else and passes over it.
std::string collapse_and_lower(std::string_view utf8) {
  constexpr UChar32 iota_below = 0x345;
  icu::UnicodeString collapsed;
  const icu::UnicodeString text = from_utf8(utf8);
  bool after_space = false;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 c = text.char32At(i);
    const bool space = u_isUWhiteSpace(c) || c == iota_below;
    if (!space) collapsed.append(c);
    if (space && !after_space) collapsed.append(u' ');
    after_space = space;
  }
  return to_utf8(collapsed.toLower(icu::Locale::getRoot()));
}

CharacterClass next_class(std::string_view utf8, std::size_t& position) {
  const auto first = static_cast<unsigned char>(utf8[position]);
  if (first < 128) {
    ++position;
    return ascii().classes[first];
  }
  UChar32 c;
  U8_NEXT_UNSAFE(utf8.data(), position, c);
  return class_of(c);
}

}  // namespace millrace
