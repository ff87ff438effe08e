#include "encoding_thread.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

constexpr std::size_t max_dropped = 1000;  // in the place of one encoder batch

// Too many to be one broken archive's, which data.max_bad_share judges: of several, or all that a stripe has.
bool are_of_many(const std::vector<SampleRef>& dropped) {
  std::map<std::uint32_t, std::size_t> of_archive;
  std::map<std::uint32_t, std::uint32_t> first_epoch;  // of a stripe
  std::size_t most = 0;
  bool is_whole_epoch = false;
  for (const auto& ref : dropped) {
    most = std::max(most, ++of_archive[ref.archive]);
    is_whole_epoch |= ref.epoch > first_epoch.try_emplace(ref.stripe, ref.epoch).first->second + 1;
  }
  return is_whole_epoch || dropped.size() - most > max_dropped;
}

[[noreturn]] void give_up(const std::vector<SampleRef>& dropped) {
  throw Error(
      Exit::bad_data,
      fmt::format(
          "{} samples of one encoder batch and its replacements have encodings that are not finite, the last is {}",
          dropped.size(), dropped.back().id),
      "encode.dtype=float32 or bfloat16: the VAE of SD 1 and 2 can overflow in float16");
}

// Leaves the finite rows in the batch; what the others were.
std::vector<SampleRef> drop_non_finite(CheckedBatch& encoded) {
  std::vector<int> kept;
  std::vector<SampleRef> dropped;
  for (std::size_t row = 0; row < encoded.finite.size(); ++row) {
    if (encoded.finite[row]) {
      kept.push_back(static_cast<int>(row));
    } else {
      dropped.push_back(encoded.batch.refs[row]);
    }
  }
  if (!dropped.empty()) encoded.batch = select_rows(encoded.batch, kept);
  return dropped;
}

}  // namespace

EncodingThread::EncodingThread(StripeStream& stream, CachedEncoder& encoder, const std::vector<std::uint32_t>& stripes,
                               TurnSize parcel)
    : stream_(stream),
      encoder_(encoder),
      samples_(stream, stripes, parcel, 2 * encoder.batch_size()),
      images_before_(encoder.images()),
      gpu_(gpu_uuid(encoder.device())) {
  thread_ = std::jthread([this, threads = at::get_num_threads()] {
    at::set_num_threads(threads);  // a thread starts with the library's default
    try {
      compute_in_own_stream(encoder_.device());
      work();
    } catch (const ReadingStopped&) {  // the run ends; whoever leads it decides when
    } catch (...) {
      failure_ = std::current_exception();
    }
    running_.reset();  // here, where its GPU is the current one: elsewhere CUDA would make a context on another
    ready_.close();
  });
}

EncodingThread::~EncodingThread() {
  ready_.close();
  stream_.end_retries();
}

std::optional<EncoderOutput> EncodingThread::next(std::chrono::milliseconds limit) {
  auto encoded = ready_.pop_for(limit);
  if (encoded || !ready_.closed()) return encoded;
  if (failure_) std::rethrow_exception(failure_);
  std::this_thread::sleep_for(limit);
  return std::nullopt;
}

// NOTE [Two batches at a time] A GPU computes one batch while this thread puts the next one together and starts it, so
// that it never waits for the host. What it has made is handed on as soon as it is there, which is looked at between
// two samples. The CPU is through with a batch when it has been started, and nothing is put together meanwhile. The
// next samples of a stripe may lie in the next batch when one turns out not to be finite. Then its replacement comes
// behind that batch, and both are handed on as one: whenever a batch is done, a stripe's samples keep their order, and
// no parcel lacks one.
void EncodingThread::work() {
  do {
    auto next = start(take_samples());
    if (running_) collect();
    running_ = std::move(next);
    hand_on();
    if (!missing_.empty() || encoder_.is_done(*running_)) {
      collect();
      replace_missing();
    }
  } while (hand_on());
}

// An encoder batch of samples that need one, and the cached samples between them, up to as many again.
std::vector<TransformedSample> EncodingThread::take_samples() {
  std::vector<TransformedSample> samples;
  int to_encode = 0;
  while (to_encode < encoder_.batch_size() && static_cast<int>(samples.size()) < 2 * encoder_.batch_size()) {
    if (running_ && encoder_.is_done(*running_)) {
      collect();
      hand_on();
    }
    auto sample = samples_.next();
    ensure(sample.has_value(), "training reads stripes without end");
    to_encode += !sample->encoding;
    samples.push_back(std::move(*sample));
  }
  return samples;
}

StartedEncoding EncodingThread::start(std::vector<TransformedSample> samples) {
  const Stopwatch watch;
  auto started = encoder_.start(std::move(samples));
  encode_seconds_ += watch.seconds();
  return started;
}

// Waits for what is running, and keeps what it has become.
void EncodingThread::collect() {
  const Stopwatch watch;
  auto checked = encoder_.collect(*std::exchange(running_, std::nullopt));
  encode_seconds_ += watch.seconds();
  for (auto& ref : drop_non_finite(checked)) {
    missing_.push_back(ref.stripe);
    collected_.dropped.push_back(std::move(ref));
  }
  pieces_.push_back(std::move(checked.batch));
  was_finite_ |= !pieces_.back().refs.empty();
  const auto& dropped = collected_.dropped;
  if (dropped.size() > max_dropped && (!was_finite_ || are_of_many(dropped))) give_up(dropped);
}

// When nothing else has been begun.
void EncodingThread::replace_missing() {
  while (!missing_.empty()) {
    running_ = start(take_replacements());
    collect();
  }
}

// What has been collected, unless it lacks samples. False when nobody wants any more.
bool EncodingThread::hand_on() {
  if (pieces_.empty() || !missing_.empty()) return !ready_.closed();
  collected_.batch = concatenate(std::exchange(pieces_, {}));
  collected_.spent = report();
  collected_.since = Stopwatch();
  return ready_.push(std::exchange(collected_, {}));
}

// The next samples of the stripes that lack some, as many as an encoder batch holds.
std::vector<TransformedSample> EncodingThread::take_replacements() {
  std::vector<TransformedSample> samples;
  while (!missing_.empty() && static_cast<int>(samples.size()) < encoder_.batch_size()) {
    auto sample = samples_.replacement(missing_.front());
    ensure(sample.has_value(), "training reads stripes without end");
    samples.push_back(std::move(*sample));
    missing_.pop_front();
  }
  return samples;
}

ProducerReport EncodingThread::report() {
  const auto reading = stream_.statistics();
  ProducerReport report;
  report.images = static_cast<double>(encoder_.images() - images_before_);
  report.seconds = since_start_.seconds();
  report.reader_seconds = reading.threads * reading.seconds;
  report.readers = reading.busy;
  report.encode_seconds = encode_seconds_;
  report.encode_wait_seconds = reading.wait_seconds;
  report.gpu = gpu_.use();
  return report;
}

}  // namespace millrace
