#include "millrace/loader/row_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace millrace {

RowCounts bad_rows_of(RowCounts counts) {
  for (const auto reason : {RejectReason::filtered, RejectReason::too_small})
    counts.rejected[static_cast<int>(reason)] = 0;
  return counts;
}

std::uint64_t RowCounts::rejected_rows() const {
  return std::accumulate(rejected.begin(), rejected.end(), std::uint64_t{0});
}
std::uint64_t RowCounts::rows() const {
  return accepted + rejected_rows();
}
std::uint64_t RowCounts::bad_rows() const {
  return bad_rows_of(*this).rejected_rows();
}

void RowCounts::add(std::optional<RejectReason> reason, std::uint64_t rows) {
  (reason ? rejected[static_cast<int>(*reason)] : accepted) += rows;
}

std::string main_reasons(const RowCounts& counts) {
  std::array<int, reason_count> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return counts.rejected[a] > counts.rejected[b]; });
  std::string text;
  for (int i : std::span(order).first(3)) {
    if (counts.rejected[i] == 0) break;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", counts.rejected[i], to_string(static_cast<RejectReason>(i)));
  }
  return text;
}

void RowTally::add(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows) {
  archives[archive].add(reason, rows);
  total.add(reason, rows);
}

void RowTally::add_non_finite(std::uint32_t archive) {
  const bool is_counted = archives[archive].accepted > 0;  // by this tally
  for (RowCounts* counts : {&archives[archive], &total}) {
    counts->accepted -= is_counted;
    counts->add(RejectReason::non_finite);
  }
}

std::string advice_on_columns(const RowCounts& counts, std::string_view section) {
  const RowCounts bad = bad_rows_of(counts);
  const auto captions = bad.rejected[static_cast<int>(RejectReason::missing_caption)];
  const auto images = bad.rejected[static_cast<int>(RejectReason::missing_image)];
  const auto most = std::max(captions, images), fewest = std::min(captions, images);
  if (most == 0 || most < *std::ranges::max_element(bad.rejected)) return "";
  if (2 * fewest >= most) return "in a tar the members of one key must be neighbours, as tar --sort=name puts them";
  return captions == most
             ? fmt::format(
                   "captions are taken from txt of tars, else from caption, TEXT, text or txt: set "
                   "{}.columns.caption to another name, of tars also json.KEY",
                   section)
             : fmt::format(
                   "images are taken from jpg, png, jpeg or webp of tars, else from columns such as image, "
                   "path or url: set {}.columns.image to another name, unless files or addresses are away "
                   "(rejected/ in the run's folder has the details)",
                   section);
}

std::string advice_on_unusable(const RowCounts& counts, std::string_view section) {
  auto advice = advice_on_columns(counts, section);
  if (!advice.empty()) return advice;
  return fmt::format("look into an archive with `millrace inspect`; check {0}.path, {0}.filters and data.images",
                     section);
}

}  // namespace millrace
