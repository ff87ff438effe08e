#pragma once
#include <cstddef>
#include <string>

#include "millrace/handoff/parcel.h"
#include "millrace/loader/data_plan.h"
#include "millrace/produce/encoding_plan.h"
#include "millrace/produce/producer.h"
#include "train/routing.h"

namespace millrace {

// From archives to trainers: what is read, how it is encoded, and who hands it to whom. One for data.train, and one for
// data.validation. The same on every rank.
struct InputPlan {
  DataPlan data = {};
  EncodingPlan encoding = {};
  Routing routing = {};
  int samples_per_stripe = 1;  // and per step
  TurnSize parcel = {};
  std::size_t parcel_bytes = 0;

  int stripes() const { return static_cast<int>(data.stripes.stripes); }
  // What one producer makes; `producer`: its position in Roles.
  ProducerPlan of_producer(int producer) const {
    return {routing.stripes_of_producer(producer), routing.trainer_places(producer), parcel};
  }
};

// Fills in the parcels of a plan whose data and encoding are known. Error(usage) if they travel between processes and
// are too large for that.
void plan_parcels(InputPlan& plan, int global_batch, const Roles& roles);

// "4 archives, 8 stripes in 16 splits".
std::string describe(const DataPlan& data);

}  // namespace millrace
