// bench transform: read, decode, transform, tokenise, each thread one sample after the other.
#include <mutex>
#include <thread>

#include "bench.h"
#include "millrace/data/prepare.h"
#include "millrace/data/source.h"
#include "millrace/models/pipeline_folder.h"

namespace millrace {
namespace {

struct Tally {
  std::int64_t images = 0;
  PrepareSeconds spent;
};

Tally read_lane(const SampleSource& source, const Preparation& preparation, std::uint32_t archives, Unit unit) {
  Tally lane;
  for (unit.archive = 0; unit.archive < archives; ++unit.archive) {
    const auto reader = source.open(unit, 0);
    for (;;) {
      Stopwatch reading;
      auto row = reader->next();
      lane.spent.read += reading.seconds();
      if (!row) break;
      if (auto* sample = std::get_if<RawSample>(&*row); sample && !judge_metadata(*sample, preparation))
        lane.images +=
            std::holds_alternative<TransformedSample>(prepare_sample(std::move(*sample), preparation, lane.spent));
    }
  }
  return lane;
}

}  // namespace

Figures bench_transform(const BenchConfig& c) {
  const auto tokenizer =
      ClipTokenizer::load(PipelineFolder::open(c.model.pipeline).component("tokenizer"), c.tokenizer);
  const auto manifest = make_manifest(c.data.train, c.data.allow_pipes);
  const auto source = make_source(c.data.train, manifest, c.transform.resolution, c.data.index);
  const Filter filter(c.data.train.filters);
  const Preparation preparation{0, c.data.images, c.transform, &tokenizer, filter.empty() ? nullptr : &filter};
  const auto threads = static_cast<std::uint32_t>(c.data.threads.value_or(c.threads));

  Figures figures("transform");
  repeat(c, Group(), [&](bool measured) {
    Tally all;
    std::mutex mutex;
    const Stopwatch watch;
    {
      std::vector<std::jthread> workers;
      for (std::uint32_t number = 0; number < threads; ++number)
        workers.emplace_back([&, number] {
          const auto lane = read_lane(*source, preparation, static_cast<std::uint32_t>(manifest.archives.size()),
                                      {0, number, threads});
          const std::lock_guard lock(mutex);
          all.images += lane.images;
          all.spent.add(lane.spent);
        });
    }
    const double seconds = watch.seconds();
    if (all.images == 0) fail(Exit::bad_data, "no usable image in data.train.path");
    if (!measured) return;
    const auto images = static_cast<double>(all.images);
    figures.add("images", "images/s", images / seconds);
    figures.add("read", "ms/image", 1000 * all.spent.read / images);
    figures.add("decode", "ms/image", 1000 * all.spent.decode / images);
    figures.add("transform", "ms/image", 1000 * all.spent.transform / images);
    figures.add("tokenise", "ms/image", 1000 * all.spent.tokenise / images);
  });
  return figures;
}

}  // namespace millrace
