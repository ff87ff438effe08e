// bench transform: read, decode, transform, tokenize, each thread one sample after the other.
#include <mutex>
#include <optional>
#include <thread>

#include "bench/bench.h"
#include "millrace/dataset/source.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/transform_sample.h"
#include "millrace/models/pipeline_folder.h"

namespace millrace {
namespace {

struct Tally {
  std::int64_t images = 0;
  TransformSeconds spent;
};

// A thread's share of an archive; nothing where the whole of it is another thread's, as of one that is read front to
// back.
std::optional<Split> share_of(const Archive& archive, std::uint32_t number, std::uint32_t thread,
                              std::uint32_t threads) {
  if (archive.seekable) return Split{number, thread, threads};
  if (number % threads != thread) return std::nullopt;
  return Split{number, 0, 1};
}

Tally read_share(const SampleSource& source, const TransformPipeline& transforms, const Manifest& manifest,
                 std::uint32_t thread, std::uint32_t threads) {
  Tally tally;
  for (std::uint32_t number = 0; number < manifest.archives.size(); ++number) {
    const auto split = share_of(manifest.archives[number], number, thread, threads);
    if (!split) continue;
    const auto reader = source.open(*split, 0);
    for (;;) {
      Stopwatch reading;
      auto row = reader->next();
      tally.spent.read += reading.seconds();
      if (!row) break;
      if (auto* sample = std::get_if<RawSample>(&*row); sample && !judge_metadata(*sample, transforms))
        tally.images +=
            std::holds_alternative<TransformedSample>(transform_sample(std::move(*sample), transforms, tally.spent));
    }
  }
  return tally;
}

}  // namespace

BenchResult bench_transform(const BenchConfig& c) {
  const auto tokenizer =
      ClipTokenizer::load(PipelineFolder::open(c.model.pipeline).component("tokenizer"), c.tokenizer);
  const auto manifest = make_manifest(c.data.train, c.data.allow_pipes);
  const auto source = make_source(c.data.train, manifest, c.transform.resolution, c.data.index);
  const Filter filter(c.data.train.filters);
  const TransformPipeline transforms{0, c.data.images, c.transform, &tokenizer, filter.empty() ? nullptr : &filter};
  const auto threads = static_cast<std::uint32_t>(c.data.threads.value_or(*c.threads.value));

  BenchResult figures("transform");
  repeat(c, Group(), [&](bool measured) {
    Tally all;
    std::mutex mutex;
    const Stopwatch watch;
    {
      std::vector<std::jthread> workers;
      for (std::uint32_t number = 0; number < threads; ++number)
        workers.emplace_back([&, number] {
          const auto tally = read_share(*source, transforms, manifest, number, threads);
          const std::lock_guard lock(mutex);
          all.images += tally.images;
          all.spent.add(tally.spent);
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
    figures.add("tokenise", "ms/image", 1000 * all.spent.tokenize / images);
  });
  return figures;
}

}  // namespace millrace
