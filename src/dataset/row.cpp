#include "millrace/dataset/row.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/core/hash.h"

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

Rejected oversized_caption(SampleRef ref, std::size_t bytes) {
  return {std::move(ref), RejectReason::too_large, fmt::format("a caption of {} bytes", bytes)};
}

}  // namespace millrace
