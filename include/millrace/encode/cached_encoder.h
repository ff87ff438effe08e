#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "millrace/encode/cache_writer.h"
#include "millrace/encode/encoder.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/loader/ledger_delta.h"

namespace millrace {

// What a cache is written for. `beside` training: it is given up with a warning if it cannot be written (a full disk),
// and does not keep rows that were rejected for a reason that may be temporary. `whole`, to replace the images: it
// keeps every row, and a failed write is an Error(io).
enum class CacheUse { beside, whole };

// Samples on their way through a CachedEncoder.
struct StartedEncoding {
  EncodedBatch batch;                    // with the encodings that samples brought; empty if none did
  std::vector<TransformedSample> fresh;  // samples without encoding, and now without pixels
  std::vector<std::int64_t> fresh_rows;  // where they belong in `batch`
  StartedBatch encoded;                  // of `fresh`
};

// The encoding stage of a producer: samples that bring their encoding pass through, the others go through the encoder
// and from there into the cache, too.
class CachedEncoder {
 public:
  // Without `encoder` every sample must bring its encoding, of `shape`; without `cache` nothing is kept.
  CachedEncoder(Encoder* encoder, std::unique_ptr<CacheWriter> cache, CacheUse use, EncodingShape shape,
                int batch_size);

  virtual ~CachedEncoder() = default;

  // Encoding in two parts, as in Encoder: at most batch_size() of the samples lack an encoding, and the batch has the
  // order of the samples. Collect batches in the order in which they were started. Virtual for tests, which decide when
  // a batch is there, and how many images there were.
  virtual StartedEncoding start(std::vector<TransformedSample> samples);
  virtual bool is_done(const StartedEncoding& started) const { return started.encoded.work.is_done(); }
  virtual CheckedBatch collect(StartedEncoding started);
  // Tells the cache of rejected rows, which it stores with what it gets next. Any thread may call it, also while
  // another one encodes.
  void reject(const std::vector<RejectedRow>& rows);
  // Publishes what the cache has collected, of all archives or of all but some.
  void finish();
  void finish_all_but(const std::set<std::uint32_t>& archives);

  int batch_size() const { return batch_size_; }
  torch::Device device() const { return encoder_ ? encoder_->device() : torch::kCPU; }
  virtual std::int64_t images() const { return encoder_ ? encoder_->images() : 0; }

 private:
  std::vector<RejectedRow> take_rejected();
  template <class Write>
  void write_cache(Write&& write);

  Encoder* encoder_;
  std::unique_ptr<CacheWriter> cache_;
  std::mutex rejected_mutex_;
  std::vector<RejectedRow> rejected_;  // that the cache does not know yet
  CacheUse use_;
  EncodingShape shape_;
  int batch_size_;
};

}  // namespace millrace
