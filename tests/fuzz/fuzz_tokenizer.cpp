// Any bytes as a caption: 77 ids of the vocabulary, first and last as they must be.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "millrace/data/tokenizer.h"
#include "millrace/data/tokenizer_folder.h"

namespace {

const millrace::ClipTokenizer& tokenizer() {
  static const millrace::ClipTokenizer loaded = [] {
    const auto folder = std::filesystem::temp_directory_path() / "millrace-fuzz-tokenizer";
    millrace::write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, folder, "!");
    return millrace::ClipTokenizer::load(folder);
  }();
  return loaded;
}

}  // namespace

// Loading counts neither as a run nor against its time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  (void)tokenizer();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto ids = tokenizer().encode({reinterpret_cast<const char*>(data), size});
  if (ids.size() != millrace::token_count || ids.front() != 49406 || std::ranges::count(ids, 49407) == 0) std::abort();
  if (std::ranges::any_of(ids, [](auto id) { return id < 0 || id >= tokenizer().vocabulary_size(); })) std::abort();
  return 0;
}
