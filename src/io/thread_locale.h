#pragma once
#include <clocale>

#include <locale.h>

namespace millrace {

// libarchive converts the names in pax headers between UTF-8 and the thread's locale.
// Read in "C" they stay as they are: the conversion fails at all that is not ASCII, and then libarchive takes the
// bytes. In UTF-8 it composes accents, which makes one name of two.
inline locale_t locale_for_reading_names() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C", nullptr);
  return locale;
}

// Written in UTF-8 they stay as they are; in "C" they lose letters. curl takes names of hosts to be in it, too, and can
// look up none beyond ASCII in "C".
inline locale_t locale_for_writing_names() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;  // null (no such locale) leaves the thread's own in place
}

class ThreadLocale {
 public:
  explicit ThreadLocale(locale_t during) : before_(::uselocale(during)) {}
  ~ThreadLocale() { ::uselocale(before_); }
  ThreadLocale(const ThreadLocale&) = delete;
  ThreadLocale& operator=(const ThreadLocale&) = delete;

 private:
  locale_t before_;
};

}  // namespace millrace
