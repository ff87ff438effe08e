#pragma once
#include <string>
#include <string_view>

#include "millrace/parcels/producer_report.h"

namespace millrace {

// Fractions of time, 0..1, that the stages of producers worked or waited. Metrics and benchmarks write `tokenise`:
// names in files never change.
struct StageShares {
  double read = 0, decode = 0, transform = 0, tokenize = 0;  // of the reading threads
  double encode = 0, encode_wait = 0;                        // of the encoding thread; wait: for samples
  double send = 0, send_wait = 0;                            // of the sending thread; wait: for trainers

  void add(const StageShares& other, double factor);
};

StageShares shares_of(const ProducerReport& spent);

// "read 2%, decode 31%, transform 12%, tokenize 0%; encode 97%, waits 1%; send 0%, waits 0%".
std::string describe(const StageShares& shares);

// What reading threads spent most time on: "reading", "decoding", "resizing" or "tokenizing".
std::string_view slowest_reading(const StageShares& shares);

}  // namespace millrace
