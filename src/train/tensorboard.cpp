#include "millrace/train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0);  // CRC-32C, reflected
    table[i] = value;
  }
  return table;
}
constexpr auto crc_table = make_crc_table();

std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (unsigned char byte : bytes) crc = (crc >> 8) ^ crc_table[(crc ^ byte) & 255];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
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

std::string tensorboard_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  std::string scalar;
  append_text(scalar, 1, tag);
  append_key(scalar, 2, 5);
  append(scalar, value);
  std::string summary;
  append_text(summary, 1, scalar);
  auto event = event_at(wall_time, step);
  append_text(event, 5, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::int64_t resumed_step) {
  std::filesystem::create_directories(folder);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const auto path = folder / fmt::format("events.out.tfevents.{}.{}.{}.0", static_cast<std::int64_t>(unix_seconds()),
                                         host, ::getpid());
  file_.emplace(path);
  put(tensorboard_version_event(unix_seconds()));
  if (resumed_step > 0) {
    auto event = event_at(unix_seconds(), resumed_step);
    std::string session;  // SessionLog{status: START}
    append_key(session, 1, 0);
    append_varint(session, 1);
    append_text(event, 7, session);
    put(event);
  }
}

void TensorBoardWriter::put(std::string_view event) {
  file_->add(tensorboard_record(event));
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  put(tensorboard_scalar_event(unix_seconds(), step, tag, static_cast<float>(value)));
}

void TensorBoardWriter::flush() {
  file_->flush();
}

}  // namespace millrace
