#include "millrace/produce/cache_filler.h"

#include <utility>

#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/loader/rejected_list.h"

namespace millrace {

CacheFiller::CacheFiller(EncodePipeline& pipeline, const DataPlan& data, std::vector<std::uint32_t> stripes,
                         const StreamOptions& options)
    : data_(data),
      rejected_(pipeline.rejected()),
      stream_(pipeline.start_stream(options, CachedValues::keys_only, stripes)),
      encoder_(pipeline.make_encoder(CacheUse::whole, stripes.size())),
      stripes_(std::move(stripes)),
      samples_(stream_, stripes_, TurnSize{}, 2 * encoder_.batch_size()),
      done_(stripes_.empty()) {}

void CacheFiller::work(double seconds) {
  const Stopwatch watch;
  std::vector<TransformedSample> samples;
  std::set<std::uint32_t> archives;  // of the rows that are read now
  try {
    do {
      if (done_ || !stream_.wait(stripes_.front(), seconds - watch.seconds())) break;
      if (auto sample = next_missing(archives)) samples.push_back(std::move(*sample));
    } while (static_cast<int>(samples.size()) < encoder_.batch_size() && watch.seconds() < seconds &&
             !stop::requested());
  } catch (const ReadingStopped&) {  // the round ends by the signal
  }
  account();
  std::optional<StartedEncoding> next;
  if (!samples.empty()) next = encoder_.start(std::move(samples));
  collect();  // a GPU has the next batch meanwhile
  running_ = std::move(next);
  if (done_) collect();
  ++phase::moves;
  const auto rejections = std::exchange(rejections_, {});
  for (const auto& row : rejections) archives.insert(row.archive);
  encoder_.reject(rejections);
  if (!archives.empty()) encoder_.finish_all_but(archives);  // those of the batch that runs are among them
}

void CacheFiller::publish() {
  collect();
  encoder_.finish();
}

// The next sample, unless the cache has it.
std::optional<TransformedSample> CacheFiller::next_missing(std::set<std::uint32_t>& archives) {
  auto sample = samples_.next();
  account();
  done_ = !sample;
  if (sample) archives.insert(sample->ref.archive);
  if (done_ || !sample->encoding) return sample;
  if (sample->encoding->values == Encoding::Values::left_not_finite)
    delta_.add_non_finite(sample->ref.archive, sample->ref.hash);
  return std::nullopt;
}

// Of the rows that were read, before anything else is said of them.
void CacheFiller::account() {
  for (const auto stripe : stripes_) {
    const auto delta = stream_.take_ledger_delta(stripe);
    for (const auto& row : fresh_rejections(delta, data_.stripes)) rejections_.push_back(row);
    delta_.append(delta);
  }
}

// The batch that was started last, if any: it goes into the cache.
void CacheFiller::collect() {
  if (!running_) return;
  const auto [batch, finite] = encoder_.collect(*std::exchange(running_, std::nullopt));
  for (std::size_t row = 0; row < finite.size(); ++row) {
    if (finite[row]) continue;
    const auto& ref = batch.refs[row];
    if (is_power_of_ten(++non_finite_))
      log::warning("{}: its encoding is not finite; the sample will be left out ({} so far)", ref.id, non_finite_);
    rejected_.add({ref, RejectReason::non_finite, "its encoding is not finite"});
    delta_.add_non_finite(ref.archive, ref.hash);
  }
}

}  // namespace millrace
