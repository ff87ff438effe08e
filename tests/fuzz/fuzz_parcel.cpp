// Any bytes as a parcel and as the ledger's delta: what can be unpacked packs again to what unpacks the same; anything
// else is an Error(io).
#include <cstdlib>

#include "millrace/core/error.h"
#include "millrace/loader/ledger_delta.h"
#include "parcels/unpack_parcel.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  try {
    const ParcelContent content = test::unpack_parcel({reinterpret_cast<const std::byte*>(data), size});
    const ParcelContent again = test::unpack_parcel(pack_parcel(content));
    if (again.stripe != content.stripe || again.batch.refs.size() != content.batch.refs.size()) std::abort();
    (void)LedgerDelta::from_bytes(content.ledger_delta);
  } catch (const Error& error) {
    if (error.exit() != Exit::io) std::abort();
  }
  return 0;
}
