#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "millrace/encode/batch.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/parcels/producer_report.h"

namespace millrace {

// What travels from a producer to a trainer: consecutive samples of one stripe, and the ledger's delta up to them.
struct ParcelContent {
  std::uint32_t stripe = 0;
  EncodedBatch batch;
  std::string ledger_delta;  // serialized LedgerDelta; empty = nothing new
  ProducerReport report;
};

// Bytes of a parcel of at most `samples` samples with ids of at most `id_bytes` and `ledger_bytes` of ledger.
std::size_t parcel_capacity_bytes(int samples, const EncodingShape& shape, std::size_t id_bytes,
                                  std::size_t ledger_bytes);

// docs/formats.md, "Parcel": little-endian, header, refs, ledger, moments f16, text f16 or tokens i32.
std::vector<std::byte> pack_parcel(const ParcelContent& content);

// A parcel whose numbers are still bytes of its slot, at any address.
struct ParcelView {
  std::uint32_t stripe = 0;
  std::vector<SampleRef> refs;
  std::string ledger_delta;
  ProducerReport report;
  EncodingShape shape;                       // of each sample
  std::span<const std::byte> moments, text;  // of all, sample by sample

  // Samples [first, first + count) become rows [row, row + count) of `batch`, which has room for them.
  void copy(std::int64_t first, std::int64_t count, EncodedBatch& batch, std::int64_t row) const;
};

// Checks every length against the bytes given; Error(io) when they do not fit. The view holds as long as the bytes do.
ParcelView read_parcel(std::span<const std::byte> bytes);

}  // namespace millrace
