#pragma once
#include <string>

#include "millrace/train/stages.h"

namespace millrace {

struct Metrics;

// How many ranks train, and how many produce.
struct RoleCounts {
  int trainers = 1, producers = 1;
  bool all_in_one = false;  // the same ranks
  // That a step takes equally many samples of, dealt out to the producers: those that have one more than others set the
  // pace. 0 = as many as it takes.
  int stripes = 0;
};

// The part of a rank that makes no difference: rates, measured or published, are not more exact.
inline constexpr double rank_tolerance = 0.01;

// The fewest producers that do as much as `ranks` of them would with equal shares of the stripes, of which 0 stands for
// as many as it takes. More than `stripes` where one stripe each would not do: a larger number of stripes could feed
// them.
int producers_worth(double ranks, int stripes);

// How trainers and producers got on with each other for a while.
struct Balance {
  double images_per_second = 0;         // trained, waits for samples included
  double trainers_wait = 0;             // share of a step in which samples of a trainer are missing, 0..1
  double encode_images_per_second = 0;  // of all producers, in the time in which they encode; 0 = nothing was encoded
  StageShares stages{};                 // of the producers

  void add(const Balance& other, double factor);
};
Balance balance_of(const Metrics& metrics);

// Who holds the run back.
enum class Bottleneck {
  none,            // trainers set the pace, with about as many producers as it takes
  more_producers,  // of those there are
  encoding,
  reading,  // or decoding, resizing, tokenizing: what comes before the encoders
  sending,
  shared_hardware,  // each side waits for the other
};
struct Judgement {
  Bottleneck bottleneck = Bottleneck::none;
  // Where encoding holds trainers back: producers that would do, or those that there are where each has one stripe
  // already. Where there are more producers than it takes: those that are enough.
  int producers = 0;
  // How many trainers the present producers could feed; 0 where that is unknown, no more than there are, or producers
  // are not idle for most of the time.
  int trainers = 0;
  double could_take = 0;       // images/s of the trainers if they never waited
  bool wants_stripes = false;  // even `producers`, with one stripe each, would not do

  bool operator==(const Judgement&) const = default;
};
Judgement judge(const Balance& balance, const RoleCounts& roles);

// One line for people: who waits, how much, and what would change it.
std::string describe(const Balance& balance, const RoleCounts& roles);

}  // namespace millrace
