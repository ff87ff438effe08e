#include "train/input_plan.h"

#include <fmt/format.h>

#include "millrace/io/archive_name.h"

namespace millrace {

void plan_parcels(InputPlan& plan, int global_batch, const Roles& roles) {
  plan.samples_per_stripe = global_batch / plan.stripes();
  plan.parcel = plan_parcel_size(plan.samples_per_stripe);
  plan.parcel_bytes = plan_parcel_bytes(plan.parcel.samples(), plan.encoding.shape);
  if (!roles.all_in_one) check_parcel_bytes(plan.parcel_bytes, plan.parcel.samples());
}

// How often one pass reads the bytes of Parquet files: a split takes every n-th row of its file, and decodes all.
static double reads_of_parquet(const DataPlan& data) {
  const auto& archives = data.manifest.archives;
  double bytes = 0, read = 0;
  for (const auto& archive : archives)
    if (is_kind(archive.path, ArchiveKind::parquet)) bytes += static_cast<double>(archive.bytes);
  for (const auto& split : data.stripes.splits)
    if (const auto& archive = archives[split.archive]; is_kind(archive.path, ArchiveKind::parquet))
      read += static_cast<double>(archive.bytes);
  return bytes > 0 ? read / bytes : 1;
}

std::string describe(const DataPlan& data) {
  const auto unseen = unseen_after_one_pass(data.stripes), reads = reads_of_parquet(data);
  return fmt::format("{} archives, {} stripes in {} splits{}{}", data.manifest.archives.size(), data.stripes.stripes,
                     data.stripes.splits.size(),
                     unseen < 0.02 ? "" : fmt::format("; uneven: one pass leaves {:.0f}% for later", 100 * unseen),
                     reads < 1.05 ? "" : fmt::format("; a pass reads the Parquet files {:.1f} times", reads));
}

}  // namespace millrace
