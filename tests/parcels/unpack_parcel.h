#pragma once
#include "millrace/parcels/parcel_bytes.h"

namespace millrace::test {

// What pack_parcel was given, in memory of its own.
inline ParcelContent unpack_parcel(std::span<const std::byte> bytes) {
  const auto parcel = read_parcel(bytes);
  const auto count = std::ssize(parcel.refs);
  ParcelContent content{parcel.stripe, make_empty_batch(count, parcel.shape), parcel.ledger_delta, parcel.report};
  if (count > 0) parcel.copy(0, count, content.batch, 0);
  return content;
}

}  // namespace millrace::test
