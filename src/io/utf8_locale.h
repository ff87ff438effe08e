#pragma once
#include <clocale>

#include <locale.h>

namespace millrace {

// libarchive converts names between UTF-8 and the thread's locale; in UTF-8 that changes nothing, in "C" it loses
// letters.
class Utf8Locale {
 public:
  Utf8Locale() : before_(::uselocale(utf8())) {}
  ~Utf8Locale() { ::uselocale(before_); }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

 private:
  static locale_t utf8() {
    static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return locale;  // null (no such locale) leaves the thread's own in place
  }
  locale_t before_;
};

}  // namespace millrace
