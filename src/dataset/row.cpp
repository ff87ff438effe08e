#include "millrace/dataset/row.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/core/hash.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

SampleRef named(std::string id) {
  SampleRef ref;
  ref.hash = hash64(id);
  ref.id = std::move(id);
  return ref;
}

}  // namespace

std::string text_of_number(double number) {
  const bool whole = std::abs(number) < 1e15 && std::trunc(number) == number;
  return whole ? fmt::to_string(static_cast<std::int64_t>(number)) : fmt::to_string(number);
}

SampleRef name_row(const Archive& archive, std::string_view key, int occurrence) {
  return named(occurrence == 1 ? fmt::format("{}/{}", archive.name, key)
                               : fmt::format("{}/{}#{}", archive.name, key, occurrence));
}

SampleRef name_archive(const Archive& archive) {
  return named(archive.name);
}

Rejected broken_archive(const Archive& archive, std::string why) {
  return {name_archive(archive), RejectReason::archive_error, std::move(why)};
}

Rejected lost_rows(const Archive& archive, std::uint64_t rows, const std::string& why) {
  return broken_archive(archive, fmt::format("{}: only {} of the rows that were read before are there now{}{}",
                                             archive.path, rows, why.empty() ? "" : "; ", why));
}

void add_text(const nlohmann::json& value, std::vector<std::string>& texts) {
  if (value.is_number()) {
    texts.push_back(value.is_number_float() ? text_of_number(value.get<double>()) : value.dump());
  } else if (value.is_string()) {
    texts.push_back(value.get<std::string>());
  }
}

std::optional<Rejected> set_captions(RawSample& sample, const std::vector<std::string>& captions) {
  std::vector<std::string> filled;
  for (const auto& caption : captions) {
    if (caption.size() > max_caption_bytes)
      return Rejected{std::move(sample.ref), RejectReason::too_large,
                      fmt::format("a caption of {} bytes", caption.size())};
    if (!caption.empty()) filled.push_back(valid_utf8(caption));
  }
  if (filled.empty()) return std::nullopt;
  sample.caption = std::move(filled.front());
  sample.more_captions.assign(std::make_move_iterator(filled.begin() + 1), std::make_move_iterator(filled.end()));
  return std::nullopt;
}

}  // namespace millrace
