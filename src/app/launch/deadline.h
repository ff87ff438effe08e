#pragma once
#include <string>
#include <thread>

namespace millrace {

// Ends this process with 76 and `why` on stderr unless it is moved or destroyed in time: for calls that wait for others
// without a limit, such as MPI_Init.
class Deadline {
 public:
  Deadline(double seconds, std::string why) { move(seconds, std::move(why)); }
  void move(double seconds, std::string why);

 private:
  std::jthread thread_;
};

// "rank 3 on n2", or the host alone: from the environment, before MPI is initialized.
std::string this_process();

}  // namespace millrace
