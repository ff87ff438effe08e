// Any text as a filter (first line), any text as metadata (the rest): a verdict, or an Error(usage) that names the key.
#include <cstdlib>
#include <string>

#include "millrace/core/error.h"
#include "millrace/dataset/filter.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find('\n'), text.size());
  try {
    const Filter filter({{"width", text.substr(0, end)}});
    (void)filter.judge(end < text.size() ? text.substr(end + 1) : "{}");
  } catch (const Error& error) {
    if (error.exit() != Exit::usage || std::string(error.what()).find("data.train.filters.width") == std::string::npos)
      std::abort();
  }
  return 0;
}
