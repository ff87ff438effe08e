#pragma once
#include "millrace/comm/group.h"
#include "millrace/dataset/data_config.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

// Made by rank 0, the same everywhere; its errors reach all ranks.
DataPlan broadcast_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch);
// The same where every rank reads its own share of one pass.
DataPlan broadcast_shares(const Group& world, const SourceConfig& source, const DataConfig& data);

}  // namespace millrace
