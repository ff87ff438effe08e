#pragma once
#include "millrace/comm/group.h"
#include "millrace/dataset/data_config.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

// The plan as rank 0 makes it, on all ranks; its errors reach all ranks. Collective.
DataPlan broadcast_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch);
// The same for one pass of which every rank reads its own share.
DataPlan broadcast_shares(const Group& world, const SourceConfig& source, const DataConfig& data);

}  // namespace millrace
