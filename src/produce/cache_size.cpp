#include "millrace/produce/cache_size.h"

#include <fmt/format.h>

#include "millrace/core/files.h"
#include "millrace/core/units.h"
#include "millrace/latents/encoding_shape.h"

namespace millrace {
namespace {

// Archives are counted to the end for data.train.limit alone.
std::optional<std::uint64_t> counted_rows(const SourceConfig& source, const Manifest& manifest) {
  if (!source.limit) return std::nullopt;
  std::uint64_t rows = 0;
  for (const Archive& archive : manifest.archives) {
    if (!archive.rows) return std::nullopt;
    rows += *archive.rows;
  }
  return rows;
}

std::optional<std::uint64_t> free_bytes(const fs::path& cache) {
  std::error_code error;
  const auto space = fs::space(existing_ancestor(cache), error);
  return error ? std::nullopt : std::optional<std::uint64_t>(space.available);
}

}  // namespace

CacheSize plan_cache_size(const EncodingPlan& plan, const SourceConfig& source, const Manifest& manifest) {
  CacheSize size{.row_bytes = encoding_bytes(plan.shape),
                 .token_bytes = std::nullopt,
                 .rows = counted_rows(source, manifest),
                 .free_bytes = free_bytes(*plan.cache)};
  if (!plan.shape.has_tokens()) size.token_bytes = encoding_bytes({plan.shape.moments, {plan.shape.text.at(0)}});
  return size;
}

std::string describe(const CacheSize& size) {
  constexpr std::uint64_t million = 1'000'000;
  auto text = fmt::format("{} a row, ", format_bytes(size.row_bytes));
  text += size.rows ? fmt::format("{} for {} rows", format_bytes(*size.rows * size.row_bytes),
                                  format_count(static_cast<double>(*size.rows)))
                    : fmt::format("{} a million rows", format_bytes(million * size.row_bytes));
  if (size.token_bytes) text += fmt::format(" (encode.text_on=trainer: {} a row)", format_bytes(*size.token_bytes));
  if (!size.free_bytes) return text;
  return text + fmt::format("; {} free, for {} rows", format_bytes(*size.free_bytes),
                            format_count(static_cast<double>(*size.free_bytes / size.row_bytes)));
}

}  // namespace millrace
