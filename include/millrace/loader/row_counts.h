#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/dataset/sample.h"

// What became of rows: accepted, or rejected for a reason.
namespace millrace {

struct RowCounts {
  std::uint64_t accepted = 0;
  std::array<std::uint64_t, reason_count> rejected{};

  std::uint64_t rows() const;
  std::uint64_t rejected_rows() const;
  // Rejected, but not by a filter, and not for being smaller than data.images asks for: no image is smaller than its
  // defaults.
  std::uint64_t bad_rows() const;
  void add(std::optional<RejectReason> reason, std::uint64_t rows = 1);
  bool operator==(const RowCounts&) const = default;
};

// Without those that do not count as bad.
RowCounts bad_rows_of(RowCounts counts);

// "1204 decode_error, 17 missing_caption": the three most frequent.
std::string main_reasons(const RowCounts& counts);

// Rows by what became of them, of each archive of the manifest and of all.
struct RowTally {
  explicit RowTally(std::size_t archives = 0) : archives(archives) {}

  RowCounts total;
  std::vector<RowCounts> archives;

  void add(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows);
  // One accepted sample turned out not to be finite.
  void add_non_finite(std::uint32_t archive);
};

// What to do about rows that lack what the columns name, as `section` spells these, such as "data.train"; empty where
// most rows are bad for other reasons.
std::string advice_on_columns(const RowCounts& counts, std::string_view section);
// What to do where no row can be used.
std::string advice_on_unusable(const RowCounts& counts, std::string_view section);

}  // namespace millrace
