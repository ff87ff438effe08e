#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"

// What every source does to make rows of what it finds.
namespace millrace {

// A number that stands where a name, a caption or a class does. pandas turns a column of whole numbers with gaps into
// one of doubles: 7.0 is the name 7.
std::string text_of_number(double number);

// Id and hash of a row: ARCHIVE/KEY, from a key's second sample on ARCHIVE/KEY#2, #3...
SampleRef name_row(const Archive& archive, std::string_view key, int occurrence = 1);

// Stands for an archive as a whole.
SampleRef name_archive(const Archive& archive);
// The one row that stands for what cannot be read of an archive.
Rejected broken_archive(const Archive& archive, std::string why);
// NOTE [Rows that were there]: who begins behind `first_row` rows of a split has had the last of them. Where an archive
// has no such row any more, it was changed or breaks earlier now, which counts as a row: without it what lies behind
// would be gone in silence. Whether that is so of one with `rows` rows, the one of its break included.
inline bool lacks_row_before(const Split& split, std::uint64_t first_row, std::uint64_t rows) {
  return first_row > 0 && split.row(first_row - 1) >= rows;
}
// That row, of an archive that has only `rows`; `why`: what it breaks with, if so.
Rejected lost_rows(const Archive& archive, std::uint64_t rows, const std::string& why = {});

// A tokenizer reads the first 77 tokens; more text than this is no caption but an accident, or worse.
inline constexpr std::size_t max_caption_bytes = 1 << 20;

// Parsed JSON takes many times its text; longer metadata are bad_json.
inline constexpr std::size_t max_metadata_bytes = 1 << 20;

// A number is a class, or a poor caption; what is neither that nor text is none.
void add_text(const nlohmann::json& value, std::vector<std::string>& texts);

// All that a row has, one at least, made valid UTF-8; empty ones count where there are no others. With too long a one
// the sample, whose `ref` is taken then, is rejected.
std::optional<Rejected> set_captions(RawSample& sample, const std::vector<std::string>& captions);

}  // namespace millrace
