#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/encode/cached_encoder.h"
#include "millrace/handoff/parcel_sender.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/stripe_stream.h"

namespace millrace {

// What one producer makes, and for whom.
struct ProducerPlan {
  std::vector<std::uint32_t> stripes;       // its own
  std::map<std::uint32_t, int> trainer_of;  // per stripe: position of the trainer that trains on it
  TurnSize parcel;
  RejectedList* rejected = nullptr;  // gets samples that cannot be encoded; null = no list
};

// Samples of a stripe that travel together: about 64 images, but no more than eight steps' worth, so that a small run
// does not wait for far more than its first step needs. `samples_per_step`: of one stripe.
TurnSize plan_parcel_size(int samples_per_step);

// Upper bound of a parcel's bytes for encodings of this shape.
std::size_t plan_parcel_bytes(int parcel_samples, const EncodingShape& shape);

// Error(usage) if a parcel is larger than what can travel between processes at once.
void check_parcel_bytes(std::size_t bytes, int parcel_samples);

// Runs a producer: reads, transforms, encodes and hands off until every trainer has said stop. All of this goes on at
// the same time: the stream's threads read ahead, a thread encodes, the calling thread sends. What is needed first is
// made and sent first (TurnOrder). The caller tells trainers of errors (tell_errors_of).
void run_producer(StripeStream& stream, CachedEncoder& encoder, ParcelSender& sender, const DataPlan& data,
                  const ProducerPlan& plan);

}  // namespace millrace
