// Any bytes as a caption, the first one choosing the mode: 77 ids of the vocabulary, first and last as they must be.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "millrace/text/tokenizer.h"
#include "millrace/text/tokenizer_folder.h"

namespace {

using Mode = millrace::TokenizerConfig::Mode;

const millrace::ClipTokenizer& tokenizer(Mode mode) {
  static const auto folder = [] {
    const auto made = std::filesystem::temp_directory_path() / "millrace-fuzz-tokenizer";
    millrace::write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, made, "!");
    return made;
  }();
  static const auto hf = millrace::ClipTokenizer::load(folder, {.mode = Mode::hf, .pad_id = {}});
  static const auto open_clip = millrace::ClipTokenizer::load(folder, {.mode = Mode::open_clip, .pad_id = {}});
  return mode == Mode::hf ? hf : open_clip;
}

}  // namespace

// Loading counts neither as a run nor against its time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  (void)tokenizer(Mode::hf);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto& chosen = tokenizer(data[0] % 2 ? Mode::open_clip : Mode::hf);
  const auto ids = chosen.encode({reinterpret_cast<const char*>(data + 1), size - 1});
  if (ids.size() != millrace::token_count || ids.front() != 49406 || std::ranges::count(ids, 49407) == 0) std::abort();
  if (std::ranges::any_of(ids, [&](auto id) { return id < 0 || id >= chosen.vocabulary_size(); })) std::abort();
  return 0;
}
