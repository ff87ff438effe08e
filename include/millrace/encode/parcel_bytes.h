#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "millrace/encode/batch.h"
#include "millrace/loader/transform_sample.h"

namespace millrace {

// How a producer has spent its time since it started: nothing but sums, so those of several producers add up.
struct ProducerReport {
  double images = 0;               // that went through the encoders
  double seconds = 0;              // since the start
  double reader_seconds = 0;       // the same, times its reading threads
  TransformSeconds readers;        // of reader_seconds
  double encode_seconds = 0;       // of seconds: in the encoders, and writing what they made to the cache
  double encode_wait_seconds = 0;  // of seconds: the encoders waited for samples
  double send_seconds = 0;         // of seconds: packing parcels and handing them over
  double send_wait_seconds = 0;    // of seconds: waiting for trainers to take parcels

  void add(const ProducerReport& other, double factor = 1);
};
static_assert(std::is_trivially_copyable_v<ProducerReport> && sizeof(ProducerReport) % sizeof(double) == 0);

// What travels from a producer to a trainer: consecutive samples of one stripe, and the ledger's delta up to them.
struct ParcelContent {
  std::uint32_t stripe = 0;
  EncodedBatch batch;
  std::string ledger_delta;  // serialized LedgerDelta; empty = nothing new
  ProducerReport report;
};

// Bytes of a parcel of at most `samples` samples with ids of at most `id_bytes` and `ledger_bytes` of ledger.
std::size_t parcel_capacity_bytes(int samples, at::IntArrayRef moments_shape, at::IntArrayRef text_shape,
                                  std::size_t id_bytes, std::size_t ledger_bytes);

// docs/formats.md, "Parcel": little-endian, header, refs, ledger, moments f16, text f16.
std::vector<std::byte> pack_parcel(const ParcelContent& content);

// Checks every length against the bytes given; Error(io) when they do not fit. The tensors own their memory.
ParcelContent unpack_parcel(std::span<const std::byte> bytes);

}  // namespace millrace
