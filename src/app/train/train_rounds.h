#pragma once
#include "launch/session.h"
#include "millrace/checkpoint/run_lease.h"
#include "train/networks.h"
#include "train/train_plan.h"

namespace millrace {

// Runs `train` once the folder is open, on every rank by its role: producers encode, trainers train, from plan.start
// until the duration is reached or something asks to stop. With guard.on_repeat=rollback another round follows each
// time that training goes back to a checkpoint. Returns the exit code. Collective over all ranks of the run.
int train_in_rounds(const Session& session, const TrainPlan& plan, LoadedNetworks& networks, const RunLease& lease);

}  // namespace millrace
