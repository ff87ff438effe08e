#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/roles.h"

// Which of many ranks is the one that differs. No communication: these are the judgements of the checks.
namespace millrace::preflight {

// What is wrong with a rank: "its clock is 3.2 s ahead of the others'".
struct Suspicion {
  int rank = 0;
  std::string what;
};

// What a rank has found out.
template <class T>
struct Fact {
  int rank = 0;
  T value;
};
template <class T>
using Facts = std::vector<Fact<T>>;

template <class T>
Fact<T> least(const Facts<T>& facts) {
  return std::ranges::min(facts, {}, &Fact<T>::value);
}
template <class T>
Fact<T> most(const Facts<T>& facts) {
  return std::ranges::max(facts, {}, &Fact<T>::value);
}
// Facts of trainers and of ranks that only produce, apart.
template <class T>
std::map<std::string, Facts<T>> by_role(const Facts<T>& facts, const Roles& roles) {
  std::map<std::string, Facts<T>> parts;
  for (const auto& fact : facts) parts[roles.trains(fact.rank) ? "trainer" : "producer"].push_back(fact);
  return parts;
}

// A rank whose value is not the most frequent one. If several values are equally frequent, nobody knows which is right,
// and all ranks are named.
struct Odd {
  int rank = 0;
  std::string own, usual;
};
std::vector<Odd> odd_ones(const Facts<std::string>& facts);

// The median, of an even number the mean of the two in the middle; 0 if there are none.
double median(const Facts<double>& facts);

// The median of the finite numbers; nothing if there are none.
std::optional<double> usual_number(const Facts<double>& facts);
// Ranks whose number is not within `share` of the usual one, or not finite.
Facts<double> far_from(const Facts<double>& facts, double usual, double share);

// Ranks whose value is below `share` of the median. Fewer than three ranks are not judged, since nobody can say which
// of two is the slow one.
Facts<double> far_below(const Facts<double>& facts, double share);

// Ranks whose clock is more than `limit` seconds away from the median of all. `offsets`: from the clock of one of them.
std::vector<Suspicion> judge_clocks(const Facts<double>& offsets, double limit_seconds);

// Trainers on which `wrong` elements of the sum of all trainers' gradients are wrong. If the sum is wrong on all of
// them, the cause is one of them or a link, and nobody knows which: Error(suspect_node).
std::vector<Suspicion> judge_sums(const Facts<std::int64_t>& wrong);

// The ranks in the order of a ring: by their place on their host, so that neighbours are on different hosts wherever
// there are several.
std::vector<int> ring_over_hosts(const std::vector<std::string>& hosts);

// The neighbours that a place in the ring exchanges messages with, in order. All pairs meet in two rounds, in three if
// the number of ranks is odd.
struct Meeting {
  int place = 0;
  bool asks = false;  // this place begins
};
std::vector<Meeting> meetings(int place, int ranks);

std::string describe_seconds(double seconds);        // "3 ms", "0.42 s", "31 s"
std::string describe_rate(double bytes_per_second);  // "512.0 MB/s"

}  // namespace millrace::preflight
