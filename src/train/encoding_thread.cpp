#include "encoding_thread.h"

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {
EncodingThread::EncodingThread(StripeStream& stream, CachedEncoder& encoder, const std::vector<std::uint32_t>& stripes,
                               int parcel_samples)
    : stream_(stream), encoder_(encoder), samples_(stream, stripes, parcel_samples, 2 * encoder.batch_size()) {
  thread_ = std::jthread([this, threads = at::get_num_threads()] {
    at::set_num_threads(threads);  // a thread starts with the library's default
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
    ready_.close();
  });
}

EncodingThread::~EncodingThread() {
  ready_.close();
}

std::optional<Encoded> EncodingThread::next(std::chrono::milliseconds limit) {
  auto encoded = ready_.pop_for(limit);
  if (!encoded && ready_.closed() && failure_) std::rethrow_exception(failure_);
  return encoded;
}

void EncodingThread::work() {
  while (ready_.push(encode(take_samples()))) {
  }
}

// An encoder batch of samples that need one, and the cached samples between them, up to as many again.
std::vector<TransformedSample> EncodingThread::take_samples() {
  std::vector<TransformedSample> samples;
  int to_encode = 0;
  while (to_encode < encoder_.batch_size() && static_cast<int>(samples.size()) < 2 * encoder_.batch_size()) {
    auto sample = samples_.next();
    ensure(sample.has_value(), "training reads stripes without end");
    to_encode += !sample->encoding;
    samples.push_back(std::move(*sample));
  }
  return samples;
}

Encoded EncodingThread::encode(std::vector<TransformedSample> samples) {
  Encoded encoded;
  const Stopwatch watch;
  encoded.batch = encoder_.encode(std::move(samples));
  encode_seconds_ += watch.seconds();
  encoded.finite.assign(encoded.batch.refs.size(), false);
  for (const int row : finite_rows(encoded.batch)) encoded.finite[row] = true;
  for (std::size_t row = 0; row < encoded.finite.size(); ++row)
    if (!encoded.finite[row]) samples_.put_back(encoded.batch.refs[row].stripe);
  encoded.spent = report();
  encoded.since = Stopwatch();
  return encoded;
}

ProducerReport EncodingThread::report() const {
  const auto reading = stream_.statistics();
  ProducerReport report;
  report.images = static_cast<double>(encoder_.images());
  report.seconds = since_start_.seconds();
  report.reader_seconds = reading.threads * reading.seconds;
  report.readers = reading.busy;
  report.encode_seconds = encode_seconds_;
  report.encode_wait_seconds = reading.wait_seconds;
  return report;
}

}  // namespace millrace
