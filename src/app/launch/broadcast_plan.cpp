#include "launch/broadcast_plan.h"

#include "millrace/comm/agree.h"
#include "millrace/loader/sources.h"

namespace millrace {

template <class Make>
static DataPlan broadcast_plan(const Group& world, const SourceConfig& source, Make&& make) {
  return data_plan_from_bytes(broadcast_from_root(world, [&] {
    const DataPlan plan = make();
    // The captions of classes are read with the source: now, while nothing is written yet.
    if (source.type == SourceConfig::Type::class_labels) make_source(source, plan.manifest, 1, /*index=*/"never");
    return to_bytes(plan);
  }));
}

DataPlan broadcast_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch) {
  return broadcast_plan(world, source, [&] { return make_data_plan(source, data, global_batch); });
}

DataPlan broadcast_shares(const Group& world, const SourceConfig& source, const DataConfig& data) {
  return broadcast_plan(world, source, [&] { return make_shares(source, data, world.size()); });
}

}  // namespace millrace
