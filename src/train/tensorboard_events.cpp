#include "tensorboard_events.h"

#include <bit>
#include <boost/crc.hpp>

namespace millrace {
namespace {

using Crc32c = boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true>;

std::uint32_t masked_crc(std::string_view bytes) {
  Crc32c sum;
  sum.process_bytes(bytes.data(), bytes.size());
  return std::rotr<std::uint32_t>(sum.checksum(), 15) + 0xa282ead8u;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}

// Protobuf wire types: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes.
void append_key(std::string& out, int field, int wire_type) {
  append_varint(out, static_cast<std::uint64_t>(field) << 3 | wire_type);
}
void append_text(std::string& out, int field, std::string_view text) {
  append_key(out, field, 2);
  append_varint(out, text.size());
  out.append(text);
}

std::string varint_field(int field, std::uint64_t value) {
  std::string message;
  append_key(message, field, 0);
  append_varint(message, value);
  return message;
}

std::string text_field(int field, std::string_view text) {
  std::string message;
  append_text(message, field, text);
  return message;
}

std::string event_at(double wall_time, std::int64_t step) {
  std::string event;
  append_key(event, 1, 1);
  append(event, wall_time);
  if (step > 0) {
    append_key(event, 2, 0);
    append_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

}  // namespace

std::string tensorboard_record(std::string_view event) {
  std::string record;
  append(record, static_cast<std::uint64_t>(event.size()));
  append(record, masked_crc(std::string(record)));
  record.append(event);
  append(record, masked_crc(event));
  return record;
}

std::string tensorboard_version_event(double wall_time) {
  auto event = event_at(wall_time, 0);
  append_text(event, 3, "brain.Event:2");
  return event;
}

std::string tensorboard_start_event(double wall_time, std::int64_t step) {
  auto event = event_at(wall_time, step);
  append_text(event, 7, varint_field(1, 1));  // SessionLog{status: START}
  return event;
}

static std::string summary_event(double wall_time, std::int64_t step, const std::string& value) {
  auto event = event_at(wall_time, step);
  append_text(event, 5, text_field(1, value));
  return event;
}

std::string tensorboard_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  auto scalar = text_field(1, tag);
  append_key(scalar, 2, 5);
  append(scalar, value);
  return summary_event(wall_time, step, scalar);
}

std::string tensorboard_image_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view png,
                                    int height, int width) {
  constexpr int rgb = 3;
  const auto image = varint_field(1, static_cast<std::uint64_t>(height)) +
                     varint_field(2, static_cast<std::uint64_t>(width)) + varint_field(3, rgb) + text_field(4, png);
  return summary_event(wall_time, step, text_field(1, tag) + text_field(4, image));
}

// A tensor of strings without dimensions, for the plug-in `text`.
std::string tensorboard_text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view text) {
  constexpr int string_type = 7;
  const auto tensor = varint_field(1, string_type) + text_field(2, "") + text_field(8, text);
  const auto plugin = text_field(1, text_field(1, "text"));
  return summary_event(wall_time, step, text_field(1, tag) + text_field(8, tensor) + text_field(9, plugin));
}

}  // namespace millrace
