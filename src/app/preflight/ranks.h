#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Which of many ranks is the one that differs. No communication: these are the judgements of the checks.
namespace millrace::preflight {

// What is wrong with a rank: "its clock is 3.2 s ahead of the others'".
struct Suspicion {
  int rank = 0;
  std::string what;
};

// Positions whose value is not the most frequent one; where several are equally frequent, that of the lowest position
// is right. `usual` gets the value that is right.
std::vector<std::size_t> odd_ones(const std::vector<std::string>& values, std::string& usual);

// The middle value, or the mean of the two in the middle; 0 of none.
double median(std::vector<double> values);

// Ranks whose clock is more than `limit` seconds away from the median of all. `offsets`: of every rank to rank 0.
std::vector<Suspicion> judge_clocks(const std::vector<double>& offsets, double limit_seconds);

// Positions of values below `share` of the median of their own kind; kinds of fewer than three are not judged, since
// nobody can say which of two is the slow one.
std::vector<std::size_t> far_below(const std::vector<double>& values, const std::vector<std::string>& kinds,
                                   double share);

// A GPU that more than one rank uses.
struct SharedGpu {
  int rank = 0, first = 0;  // `rank` has the one that `first` has
  std::string host;
};
// `uuids`: empty where a rank has no GPU.
std::vector<SharedGpu> shared_gpus(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts);

// The order in which ranks are neighbours in a ring: by place on their host, so that messages between neighbours cross
// hosts wherever there are several.
std::vector<int> ring_over_hosts(const std::vector<std::string>& hosts);

// For each rank another one, on another host where there is one; itself when it is alone.
std::vector<int> partners(const std::vector<std::string>& hosts);

// "3 ms", "0.42 s", "31 s".
std::string describe_seconds(double seconds);
// "512.0 MB/s".
std::string describe_rate(double bytes_per_second);

}  // namespace millrace::preflight
