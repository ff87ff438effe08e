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

// What a cache is written for. `beside` training, it is given up with a warning when it cannot be written (a full
// disk), and does not keep rows whose reason may be gone another time. `whole`, to replace the images: it keeps every
// row, and what it cannot write is an Error(io).
enum class CacheUse { beside, whole };

// Samples on their way through a CachedEncoder.
struct StartedEncoding {
  EncodedBatch batch;                    // holds what samples brought; empty where none brought anything
  std::vector<TransformedSample> fresh;  // the others, without their pixels
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

  // In two parts, as Encoder has it: at most batch_size() samples without encoding among them, and a batch in the order
  // of the samples. Batches are collected in the order in which they were started. Virtual for tests that decide when a
  // batch is there, and how many images there were.
  virtual StartedEncoding start(std::vector<TransformedSample> samples);
  virtual bool is_done(const StartedEncoding& started) const { return started.encoded.work.is_done(); }
  virtual CheckedBatch collect(StartedEncoding started);
  // Lets the cache know rows that need not be read again, with what it gets next. Any thread may call it, also while
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
