#pragma once
#include <type_traits>

#include "millrace/loader/transform_sample.h"
#include "millrace/nn/gpu_use.h"

namespace millrace {

// How a producer has spent its time since it started. All fields are sums, so reports of several producers can be
// added.
struct ProducerReport {
  double images = 0;               // that went through the encoders
  double seconds = 0;              // since the start
  double reader_seconds = 0;       // the same, times its reading threads
  TransformSeconds readers;        // of reader_seconds
  double encode_seconds = 0;       // of seconds: in the encoders, and writing what they made to the cache
  double encode_wait_seconds = 0;  // of seconds: the encoders waited for samples
  double send_seconds = 0;         // of seconds: packing parcels and handing them over
  double send_wait_seconds = 0;    // of seconds: waiting for trainers to take parcels
  GpuUse gpu;                      // use of the producer's GPU, by all that runs there

  void add(const ProducerReport& other, double factor = 1);
};
static_assert(std::is_trivially_copyable_v<ProducerReport> && sizeof(ProducerReport) % sizeof(double) == 0);

}  // namespace millrace
