// bench loader: from archives to batches as the encoders take them, by the producers' own stream and order.
#include <ctime>
#include <numeric>
#include <set>

#include "bench/bench.h"
#include "millrace/core/hash.h"
#include "millrace/encode/encoder.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/sample_loader.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/stripe_stream.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "millrace/produce/producer.h"

namespace millrace {
namespace {

// What one pass over the data gave; the same for every pass.
struct Pass {
  std::int64_t samples = 0, batches = 0;
  Hash128 order;
  double seconds = 0, first_batch_seconds = 0;
  double processor_seconds = 0;  // of all threads
  StreamStatistics stream;
};

class Loader {
 public:
  explicit Loader(const BenchConfig& c)
      : micro_(c.micro_batch()),
        tokenizer_(ClipTokenizer::load(PipelineFolder::open(c.model.pipeline).component("tokenizer"), c.tokenizer)),
        data_(make_data_plan(c.data.train, c.data, c.micro_batch())),
        source_(make_source(c.data.train, data_.manifest, c.transform.resolution, c.data.index)),
        loader_(c.data, c.transform, data_, {.tokenizer = &tokenizer_}),
        stripes_(data_.stripes.stripes),
        options_(make_stream_options(c.data, *c.threads.value)) {
    std::iota(stripes_.begin(), stripes_.end(), 0);
    options_.epochs = 1;
  }

  int threads() const { return options_.threads; }

  // `look` is shown every sample.
  template <class Look>
  Pass run(Look&& look) {
    const Stopwatch watch;
    const std::clock_t processor = std::clock();
    StripeStream stream = loader_.start(*source_, stripes_, options_);
    InterleavedReader reader(stream, stripes_, plan_parcel_size(micro_ / static_cast<int>(stripes_.size())),
                             2 * micro_);
    Pass pass;
    Hasher128 order;
    for (auto samples = take_batch(reader); !samples.empty(); samples = take_batch(reader)) {
      const auto pixels = stack_images(samples);  // (B, H, W, 3)
      const auto tokens = stack_tokens(samples);  // (B, 77)
      ensure(pixels.size(0) == tokens.size(0), "a batch has the tokens of its images");
      if (pass.batches++ == 0) pass.first_batch_seconds = watch.seconds();
      pass.samples += pixels.size(0);
      for (const auto& sample : samples) {
        order.update(sample.ref.id.data(), sample.ref.id.size());
        look(sample);
      }
    }
    pass.seconds = watch.seconds();
    pass.processor_seconds = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
    pass.order = order.digest();
    pass.stream = stream.statistics();
    return pass;
  }

 private:
  std::vector<TransformedSample> take_batch(InterleavedReader& reader) const {
    std::vector<TransformedSample> samples;
    while (static_cast<int>(samples.size()) < micro_) {
      auto sample = reader.next();
      if (!sample) break;
      samples.push_back(std::move(*sample));
    }
    return samples;
  }

  int micro_;
  ClipTokenizer tokenizer_;
  DataPlan data_;
  std::unique_ptr<SampleSource> source_;
  SampleLoader loader_;
  std::vector<std::uint32_t> stripes_;
  StreamOptions options_;
};

}  // namespace

BenchResult bench_loader(const BenchConfig& c) {
  Loader loader(c);
  BenchResult figures("loader");
  Pass first;
  repeat(c, Group(), [&](bool measured) {
    if (!measured) {
      std::set<std::string> ids;
      first = loader.run([&](const TransformedSample& sample) { ids.insert(sample.ref.id); });
      if (first.samples == 0) fail(Exit::bad_data, "no usable image in data.train.path");
      ensure(static_cast<std::int64_t>(ids.size()) == first.samples, "a pass has every sample once");
      return;
    }
    const Pass pass = loader.run([](const TransformedSample&) {});
    ensure(pass.samples == first.samples && pass.order == first.order, "every pass has the same samples in one order");
    const auto samples = static_cast<double>(pass.samples);
    const auto& busy = pass.stream.busy;
    const double thread_seconds = pass.stream.threads * pass.stream.seconds;
    figures.add("samples", "samples/s", samples / pass.seconds);
    figures.add("first_batch", "ms", 1000 * pass.first_batch_seconds);
    figures.add("processor", "ms/sample", 1000 * pass.processor_seconds / samples);
    figures.add("read", "ms/sample", 1000 * busy.read / samples);
    figures.add("decode", "ms/sample", 1000 * busy.decode / samples);
    figures.add("transform", "ms/sample", 1000 * busy.transform / samples);
    figures.add("tokenise", "ms/sample", 1000 * busy.tokenize / samples);
    figures.add("threads_busy", "%", 100 * busy.total() / thread_seconds);
    figures.add("threads_wait", "%", 100 * (1 - busy.total() / thread_seconds));
    figures.add("batch_wait", "%", 100 * pass.stream.wait_seconds / pass.seconds);
    figures.add("memory", "MiB", static_cast<double>(peak_memory_bytes(torch::kCPU)) / (1 << 20));
  });
  return figures;
}

}  // namespace millrace
