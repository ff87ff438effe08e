#pragma once
#include <string>
#include <thread>

namespace millrace::preflight {

// Ends this process with 76 and `why` on stderr unless it is destroyed within `seconds`: for calls that wait for others
// and know no limit, such as MPI_Init.
class TimeLimit {
 public:
  TimeLimit(double seconds, std::string why);

 private:
  std::jthread thread_;
};

}  // namespace millrace::preflight
