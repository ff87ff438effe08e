#pragma once
#include <string>
#include <vector>

// Which of many ranks is the one that differs. No communication: these are the judgements of the checks.
namespace millrace::preflight {

// What is wrong with a rank: "its clock is 3.2 s ahead of the others'".
struct Suspicion {
  int rank = 0;
  std::string what;
};

// A value that is not the most frequent one, and the most frequent one beside it.
struct Odd {
  std::size_t position = 0;
  std::string usual;
};
// Where several values are the most frequent ones nobody knows which is right, and all are named.
std::vector<Odd> odd_ones(const std::vector<std::string>& values);

// The middle value, or the mean of the two in the middle; 0 of none.
double median(std::vector<double> values);

// Ranks whose clock is more than `limit` seconds away from the median of all. `offsets`: of every rank to rank 0.
std::vector<Suspicion> judge_clocks(const std::vector<double>& offsets, double limit_seconds);

// Positions of values below `share` of the median of their own kind; kinds of fewer than three are not judged, since
// nobody can say which of two is the slow one.
std::vector<std::size_t> far_below(const std::vector<double>& values, const std::vector<std::string>& kinds,
                                   double share);

// GPUs that several ranks use: a host on which they are more than on another has lost one, or sees too few.
struct Sharing {
  int ranks_per_gpu = 1;  // at the most
  std::vector<Suspicion> suspects;
};
// `uuids`: of every rank, empty where it has no GPU.
Sharing judge_sharing(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts);

// The order in which ranks are neighbours in a ring: by place on their host, so that messages between neighbours cross
// hosts wherever there are several.
std::vector<int> ring_over_hosts(const std::vector<std::string>& hosts);

// With whom a place of a ring talks, in this order: so all pairs meet in two rounds, in three where ranks are odd.
struct Meeting {
  int place = 0;
  bool asks = false;  // who begins
};
std::vector<Meeting> meetings(int place, int ranks);

// "3 ms", "0.42 s", "31 s".
std::string describe_seconds(double seconds);
// "512.0 MB/s".
std::string describe_rate(double bytes_per_second);

}  // namespace millrace::preflight
