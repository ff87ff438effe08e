#pragma once
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

// What a storm draws from one number: a data set, a training, and the lives in which it is done.
namespace millrace::storm {

// The same draws from the same seed on every machine, which std::uniform_int_distribution does not promise.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  // 0 <= n < bound
  int below(int bound) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(bound)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  double share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool chance(double probability) { return share() < probability; }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

enum class Archives { tar, tar_gz, parquet };

// Images of a few pixels, some of them spoilt.
struct DataSet {
  Archives archives = Archives::tar;
  std::vector<int> rows;   // of each archive
  double bad_share = 0;    // broken images, missing images and captions
  bool filtered = false;   // a filter that a quarter of the rows does not pass
  bool cut_short = false;  // the last archive ends in the middle of its last row
};

// Who does what, and how a step is computed.
struct Layout {
  int ranks = 1;
  int producers = 0;  // 0: every rank trains and produces
  int micro = 1;
  int encode_batch = 120;
  bool ddp = false;
  bool recompute = false;  // model.gradient_checkpointing
  int threads = 1;         // data.threads

  int trainers() const { return ranks - producers; }
  // NOTE [When bits are promised]: the sums of a step depend on how many trainers share it, on the micro-batches, on
  // who holds which shard and on the shape of an encoder batch, and on nothing else. Producers, their threads, the
  // lives before, and what a cache knew must not change a bit.
  bool computes_like(const Layout& other) const {
    return trainers() == other.trainers() && micro == other.micro && encode_batch == other.encode_batch &&
           ddp == other.ddp && recompute == other.recompute;
  }
};

// From one start of the program to its end.
struct Life {
  enum class End { finish, stop, signal, kill_at_step, kill_at_time };
  End end = End::finish;
  int step = 0;        // stop: the duration; signal and kill: as soon as this step is written
  double seconds = 0;  // kill_at_time
  int rank = 0;        // who gets the signal
  int signal = 0;
  int save_every = 1, keep = 1;
  bool mpirun = true;  // one rank may also run alone
  Layout layout;
};

enum class Encodings {
  online,         // made while training
  full_cache,     // encode.cache, filled by preprocess
  half_cache,     // encode.cache, filled from the first rows only
  killed_cache,   // encode.cache, filled by a preprocess that was killed
  write_through,  // encode.cache, empty at first
  latents         // data.train.type=latents on a cache that was filled, sometimes by a preprocess that was killed once
};

struct Case {
  std::uint64_t seed = 0;
  DataSet data;
  Encodings encodings = Encodings::online;
  int cache_ranks = 1, rows_per_file = 5000;
  bool kill_preprocess = false;
  int batch = 8;
  std::optional<int> stripes;  // data.stripes
  int block = 1;               // rows of one stripe that are shuffled together
  int steps = 8;
  bool ema = true, augmented = false;
  std::vector<Life> lives;

  int total_rows() const;
  // What data.stripes=auto comes to.
  int stripe_count() const;
  bool computed_alike() const;  // in all lives
};

Case draw_case(std::uint64_t seed);

std::string describe(const Layout& layout);
std::string describe(const Life& life);
std::string describe(const Case& drawn);  // one line

}  // namespace millrace::storm
