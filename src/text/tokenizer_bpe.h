#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Byte-pair encoding as of CLIP: text as bytes, each byte a symbol, the last symbol of a word marked with "</w>"; the
// pair that was learnt first is merged first.
namespace millrace {

class BytePairs {
 public:
  // vocab.json (token -> id) and merges.txt (a header line, then one pair per line, in the order of learning).
  static BytePairs load(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);
  // Both out of tokenizer.json, the only file that transformers 5 writes.
  static BytePairs load(const std::filesystem::path& tokenizer_json);

  // Appends the ids of one word (at least one byte).
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;
  // -1 when the vocabulary does not have it.
  std::int32_t find(std::string_view token) const;
  int size() const { return static_cast<int>(vocabulary_.size()); }

 private:
  struct Merge {
    std::int32_t rank, id;
  };
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::int32_t require(std::string_view token, const std::filesystem::path& file) const;
  void learn_tokens(const nlohmann::json& vocabulary);
  void learn_bytes(const std::filesystem::path& file);
  void learn_merges(std::string_view text, const std::filesystem::path& file);
  void refuse_missing_merges(const std::filesystem::path& file) const;

  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> vocabulary_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // pair of ids -> rank and merged id
  std::array<std::int32_t, 256> inner_{}, last_{};   // byte -> id, inside a word and at its end
};

// GPT-2's visible character for each byte, as UTF-8: itself where printable, else one from U+0100 on.
std::array<std::string, 256> byte_symbols();

}  // namespace millrace
