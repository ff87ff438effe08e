#pragma once
#include <memory>

#include "millrace/comm/collectives.h"

namespace millrace {

// What src/comm/collectives_nccl.cpp calls make_device_collectives, compiled for pretended GPUs.
std::unique_ptr<Collectives> make_rehearsed_collectives(const Group& group, int device,
                                                        void* (*compute_stream)(int device));

// For arithmetic on the CPU, which is over when a transfer is asked for: each rank of the world on a GPU of its own.
std::unique_ptr<Collectives> rehearse(const Group& group);

}  // namespace millrace
