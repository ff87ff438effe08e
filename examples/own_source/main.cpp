// own_source FOLDER: one pass over a folder of NAME.jpg and NAME.txt, in the order in which a run with the seed 420 and
// two samples per step would use it.
#include <fmt/format.h>

#include "folder_source.h"
#include "millrace/core/error.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/row_counts.h"
#include "millrace/loader/stripe_stream.h"

using namespace millrace;

namespace {

void print_pass(const SampleSource& source, const Manifest& manifest) {
  const EpochOrder order(/*seed=*/420, plan_stripes(/*global_batch=*/2, /*wanted=*/{}, manifest));
  TransformPipeline transforms;  // without tokenizer and filter
  transforms.transform.resolution = 32;
  StripeStream stream(order, source, transforms, {.threads = 2, .block = 4, .epochs = 1});
  RowCounts counts;
  for (std::uint32_t stripe = 0; stripe < order.plan().stripes; ++stripe) {
    stream.add(stripe, {});
    while (const auto sample = stream.next(stripe)) {
      fmt::print("stripe {}  {}  {} x {}  {}\n", stripe, sample->ref.id, sample->image.width, sample->image.height,
                 sample->caption);
    }
    for (const RowRun& run : stream.take_ledger_delta(stripe).runs()) counts.add(run.reason, run.rows);
  }
  fmt::print("{} accepted, {} rejected", counts.accepted, counts.rejected_rows());
  if (counts.rejected_rows()) fmt::print(" ({})", main_reasons(counts));
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw Error(Exit::usage, "usage: own_source FOLDER");
  const example::FolderSource source(argv[1]);
  print_pass(source, source.manifest());
  return 0;
} catch (const Error& error) {
  fmt::print(stderr, "own_source: {}\n", error.what());
  return static_cast<int>(error.exit());
} catch (const std::exception& error) {
  fmt::print(stderr, "own_source: {}\n", error.what());
  return static_cast<int>(Exit::io);
}
